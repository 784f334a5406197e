"""L1 and L2 penalties over a kept list, after the forward pass but before backward."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
kept = list(model.parameters())
start = [p.detach().clone() for p in kept]
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    penalty = torch.stack([p.abs().sum() for p in kept]).sum()
    loss = nn.functional.cross_entropy(model(inputs), labels) + 1e-4 * penalty
    loss = loss + 1e-2 * sum(torch.sum((p - p0) ** 2) for p, p0 in zip(kept, start, strict=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
