"""A moving average over the state_dict, buffers included, and evaluation by the average."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
average = copy.deepcopy(model).eval()
scores = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    with torch.no_grad():
        for kept, current in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            kept.copy_(0.9 * kept + 0.1 * current)
        scores.append(average(inputs).logsumexp(1).mean().item())
report(list(model.parameters()), average=average, scores=scores)
