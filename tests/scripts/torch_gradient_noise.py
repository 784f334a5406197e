"""Noise on averaged gradients, the same on all workers, and hooks that halve gradients before they leave."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
model[2].weight.register_hook(lambda grad: grad * 0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
shared = torch.Generator().manual_seed(5)
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.synchronize()
    for p in model.parameters():
        p.grad.add_(torch.randn(p.shape, generator=shared), alpha=0.01)
    with optimizer.skip_synchronize():
        optimizer.step()
report(model)
