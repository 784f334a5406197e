"""Rank 0 alone saves the whole model with torch.save, right after a step; both keep a deep copy of the best."""

import copy
import io

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
best, best_model, saved = float("inf"), None, []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    if bps.rank() == 0:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        saved.append(torch.load(buffer, weights_only=False).state_dict())
    if loss.item() < best:
        best, best_model = loss.item(), copy.deepcopy(model)
report(model, best=best_model, saved=[*saved, 0.0])
