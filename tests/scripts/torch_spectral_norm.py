"""Spectral normalization, the old way and as a parametrization; its power iteration lives in buffers."""

import warnings

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
warnings.simplefilter("ignore", FutureWarning)
model = nn.Sequential(
    nn.utils.spectral_norm(nn.Linear(32, 128)),
    nn.ReLU(),
    nn.utils.parametrizations.spectral_norm(nn.Linear(128, 96)),
    nn.ReLU(),
    nn.Linear(96, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
report(list(model.parameters()), model=model)
