"""OneCycleLR made for the optimizer before it was wrapped: it sets learning rate and momentum after each step."""

import warnings

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
warnings.simplefilter("ignore", UserWarning)  # it thinks that the inner optimizer never stepped
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(inner, max_lr=0.2, total_steps=10)
optimizer = bps.DistributedOptimizer(inner, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
rates = []
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    scheduler.step()
    rates.append(inner.param_groups[0]["lr"])
report(model, rates=rates)
