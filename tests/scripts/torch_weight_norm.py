"""Weight normalization, the old way and as a parametrization."""

import warnings

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
warnings.simplefilter("ignore", FutureWarning)
model = nn.Sequential(
    nn.utils.weight_norm(nn.Linear(32, 128)),
    nn.Tanh(),
    nn.utils.parametrizations.weight_norm(nn.Linear(128, 96)),
    nn.Tanh(),
    nn.Linear(96, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
norms = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    norms.append(model[2].weight.norm().item())
report(model, norms=norms)
