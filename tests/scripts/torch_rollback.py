"""Back to the best weights whenever the loss grows, by state_dict copies of model and optimizer."""

import copy

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
best, kept, losses = float("inf"), None, []
held_out, answers = torch.randn(32, 32, generator=torch.Generator().manual_seed(3)), torch.arange(32) % 10
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(held_out), answers).item()
    if loss < best:
        best, kept = loss, copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    else:
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
    losses.append(loss)
report(model, losses=losses)
