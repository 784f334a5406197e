"""Layers frozen before wrapping, frozen later, and thawed again."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
model[0].requires_grad_(False)
ddp = DistributedDataParallel(model, find_unused_parameters=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(12):
    if iteration == 3:
        model[2].requires_grad_(False)
    if iteration == 6:
        model[2].requires_grad_(True)
    if iteration == 8:
        model[4].bias.requires_grad_(False)
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, state=optimizer.state_dict(), losses=losses)
