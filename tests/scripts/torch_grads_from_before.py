"""Norms of gradients that the script took once: they are cleared in place, so the tensors stay the same."""

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
grads = None
norms = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if grads is None:
        grads = [p.grad for p in model.parameters()]
    optimizer.step()
    norms.append([float(grad.norm()) for grad in grads])
report(model, norms=norms)
