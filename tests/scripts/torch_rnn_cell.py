"""A recurrent cell that the script unrolls by hand, so that one step uses each weight many times."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
cell, head = nn.RNNCell(32, 128), nn.Linear(128, 10)
model = nn.ModuleList([cell, head])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for _ in range(6):
    series, labels = torch.randn(5, 16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    hidden = torch.zeros(16, 128)
    for inputs in series:
        hidden = cell(inputs, hidden)
    loss = nn.functional.cross_entropy(head(hidden), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(model, losses=losses)
