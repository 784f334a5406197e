"""NumPy arrays that share the gradients' memory, made once: they are cleared in place, and read after each step."""

import byteps.torch as bps
import numpy as np
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
views = None
read = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if views is None:
        views = [p.grad.numpy() for p in model.parameters()]
    optimizer.step()
    read.append([np.abs(view).sum() for view in views])
report(model, read=read)
