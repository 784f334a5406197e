"""Gradients of two backward passes make one step."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=2)
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(model(inputs), labels) / 2
    loss.backward()
    losses.append(loss.item())
    if iteration % 2 == 1:
        optimizer.step()
        optimizer.zero_grad()
report(model, losses=losses)
