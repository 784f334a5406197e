"""Optimizer and schedule are made before the module is wrapped, as Accelerate does."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=10)
ddp = DistributedDataParallel(model)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(10):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report(ddp, state=optimizer.state_dict(), losses=losses)
