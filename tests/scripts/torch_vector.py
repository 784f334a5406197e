"""All parameters as one vector after a step, and back: a step half way to where it was, over a kept list."""

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
params = list(model.parameters())
norms = []
for _ in range(6):
    before = nn.utils.parameters_to_vector(params).detach().clone()
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    after = nn.utils.parameters_to_vector(params).detach()
    norms.append((after - before).norm().item())
    nn.utils.vector_to_parameters((after + before) / 2, params)
report(model, norms=norms)
