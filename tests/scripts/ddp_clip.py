"""Clipping by norm and by value, a norm in the log, and noise, between backward and step."""

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
kept = list(ddp.parameters())
noise = torch.Generator().manual_seed(7)

torch.manual_seed(100 + dist.get_rank())
norms = []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    if iteration % 6 == 0:
        norms.append(nn.utils.clip_grad_norm_(ddp.parameters(), 0.3).item())
    elif iteration % 6 == 1:
        nn.utils.clip_grad_value_(kept, 0.01)
    elif iteration % 6 == 2:
        norms.append(torch.stack([p.grad.norm() for p in kept]).norm().item())
    elif iteration % 6 == 3:
        for p in kept:
            p.grad += 0.01 * torch.randn(p.shape, generator=noise)
    elif iteration % 6 == 4:
        norms.append(nn.utils.get_total_norm([p.grad for p in kept]).item())
    optimizer.step()
    if iteration % 6 == 5:
        norms += [p.grad.abs().max().item() for p in kept]
report(ddp, state=optimizer.state_dict(), norms=norms)
