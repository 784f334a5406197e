"""Gradient clipping by value, and a learning rate that the script sets by hand in the groups."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
for iteration in range(6):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * (iteration + 1)
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_value_(model.parameters(), 0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
report(model)
