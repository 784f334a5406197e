"""Elastic weight consolidation: before each forward pass a penalty over named parameters kept from before."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
params = {name: p for name, p in model.named_parameters() if p.requires_grad}
means = {name: p.clone().detach() for name, p in params.items()}
fisher = {name: torch.ones_like(p) for name, p in params.items()}
penalties = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    penalty = sum((fisher[name] * (params[name] - means[name]) ** 2).sum() for name in params)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels) + 0.5 * penalty
    loss.backward()
    optimizer.step()
    penalties.append(float(penalty.detach()))
report(model, penalties=penalties)
