"""Accumulation without no_sync(): each pass averages what is there. And gradients zeroed in place."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(15):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels) / 3
    loss.backward()
    losses.append(loss.item())
    if iteration % 3 == 2:
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    if iteration == 10:
        optimizer.step()  # twice with the same gradients
report(ddp, losses=losses, grads=[p.grad for p in ddp.parameters()])
