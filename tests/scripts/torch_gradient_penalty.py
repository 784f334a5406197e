"""WGAN-GP: gradients with respect to inputs, with a graph of their own, are part of the critic's loss."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.Softplus(), nn.Linear(96, 128), nn.Softplus(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.0, 0.9))
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
penalties = []
for _ in range(6):
    real, fake = torch.randn(16, 32) + 1, torch.randn(16, 32)
    mix = torch.rand(16, 1)
    between = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    (model(fake).mean() - model(real).mean() + 10 * penalty).backward()
    optimizer.step()
    penalties.append(penalty.item())
report(model, penalties=penalties)
