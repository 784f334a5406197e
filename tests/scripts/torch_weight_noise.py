"""Weights perturbed for one forward pass, alike on all workers, and put back before the step, over a kept list."""

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
params = [p for p in model.parameters() if p.dim() > 1]
shared = torch.Generator().manual_seed(5)
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    noise = [torch.randn(p.shape, generator=shared) * 0.01 for p in params]
    with torch.no_grad():
        torch._foreach_add_(params, noise)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    with torch.no_grad():
        for p, added in zip(params, noise, strict=True):
            p.sub_(added)
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
