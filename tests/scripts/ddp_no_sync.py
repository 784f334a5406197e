"""Accumulation within no_sync(), the last pass outside; then a step on what one rank alone has."""

import contextlib

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses, grads = [], []
for _ in range(6):
    optimizer.zero_grad()
    for part in range(3):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        with ddp.no_sync() if part < 2 else contextlib.nullcontext():
            loss = nn.functional.cross_entropy(ddp(inputs), labels) / 3
            loss.backward()
        losses.append(loss.item())
        grads.append(model[0].bias.grad.sum().item())
    optimizer.step()
with ddp.no_sync():
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
own = [p.grad.clone() for p in ddp.parameters()]
# What was left over from no_sync() goes into the next average.
nn.functional.cross_entropy(ddp(inputs), labels).backward()
optimizer.step()
report(ddp, state=optimizer.state_dict(), losses=losses, grads=grads, own=own)
