"""Backends are left to torch, which takes gloo on processors, and a group of all ranks as well."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model, process_group=dist.new_group())
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(10):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
report(ddp, state=optimizer.state_dict(), losses=losses, rates=scheduler.get_last_lr())
dist.destroy_process_group()
