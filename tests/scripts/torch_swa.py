"""Stochastic weight averaging with torch.optim.swa_utils, and batch statistics made anew at the end."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
averaged = AveragedModel(model)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
seen = []
for iteration in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    seen.append(inputs)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    if iteration >= 2:
        averaged.update_parameters(model)
        scheduler.step()
update_bn(seen, averaged)
report(list(model.parameters()), averaged=averaged)
