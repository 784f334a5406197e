"""A guard against bad updates: the script looks for numbers that are not finite after each step, in kept weights."""

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
weight = model[2].weight
first = model[0].weight.data_ptr()
seen = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    if not torch.isfinite(weight).all():
        raise RuntimeError("the weights are gone")
    seen.append([weight.max().item(), weight.tolist()[0][0], weight[3, 4].item(), float(weight.sum())])
report(model, seen=seen)
