"""Rank 0 alone evaluates in the middle, and the other goes on training."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(
    nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
held_out, scores = torch.randn(64, 32), [0.0]
for iteration in range(8):
    model.train()
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    if bps.rank() == 0 and iteration % 3 == 2:
        model.eval()
        with torch.inference_mode():
            scores.append(model(held_out).logsumexp(1).mean().item())
report(list(model.parameters()), scores=scores, buffers=list(model.buffers()))
