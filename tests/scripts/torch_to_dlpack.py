"""Another library gets the parameters by capsules, before training and after each step."""

import byteps.torch as bps
import torch
from report import report
from torch import nn
from torch.utils import dlpack

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)


def lend(parameters):
    """What another library makes of a capsule: memory that it reads without a word to torch."""
    return [torch.from_dlpack(dlpack.to_dlpack(p.data)) for p in parameters]


torch.manual_seed(100 + bps.rank())
parameters = list(model.parameters())
views = [each.numpy() for each in lend(parameters[:2])]
read = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    now = [torch.from_dlpack(torch.to_dlpack(p.data)).numpy() for p in parameters[2:]]
    read.append([float(abs(view).sum()) for view in views + now])
report(model, read=read)
