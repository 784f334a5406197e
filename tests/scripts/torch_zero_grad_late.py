"""zero_grad() between forward and backward, of the optimizer and of the model, or right after the step."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
losses = []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    if iteration % 3 == 0:
        optimizer.zero_grad()
    elif iteration % 3 == 1:
        model.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 3 == 1:
        optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
report(model, losses=losses)
