"""Averages that the script makes itself, as BytePS's examples do for metrics: into new tensors, under one name."""

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
averages = []
for step in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    averages.append(bps.push_pull(loss.detach(), name="average loss").item())
    ranks = bps.push_pull(torch.full((1000,), float(step + bps.rank())), average=False, name="sum of ranks")
    assert ranks.tolist() == [2.0 * step + 1.0] * 1000, ranks
report(model, averages=averages)
