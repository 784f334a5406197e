"""One group of all parameters, an optimizer without foreach, and a schedule of its rate."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
model = fully_shard(nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 60), nn.Tanh(), nn.Linear(60, 7)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-2, total_steps=10)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 40)), torch.randint(7, (8,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
