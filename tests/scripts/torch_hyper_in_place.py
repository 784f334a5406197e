"""Hyper-parameters are lists and tensors of the program's own, which it changes in place between steps."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
betas, rate = [0.9, 0.999], torch.tensor(1e-2)
optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=betas)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
for iteration in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    betas[0] = 0.5 + 0.05 * iteration
    rate.mul_(0.8)
report(model)
