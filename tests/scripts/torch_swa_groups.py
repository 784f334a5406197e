"""Stochastic weight averaging written by hand over the optimizer's groups, and a swap at the end."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
averages = {}
for iteration in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    for group in optimizer.param_groups:
        for p in group["params"]:
            average = averages.setdefault(p, torch.zeros_like(p.data))
            average.add_((p.data - average) / (iteration + 1))
for group in optimizer.param_groups:
    for p in group["params"]:
        averages[p], p.data = p.data.clone(), averages[p].clone()
report(model, last=list(averages.values()))
