"""NumPy arrays that share the gradients' memory, made once and read after each backward pass."""

import numpy as np
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
params = list(ddp.parameters())
optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
views, read = [], []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad(set_to_none=False)
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    if iteration == 1:  # One that torch writes and another library reads, too.
        views = [np.from_dlpack(p.grad) if place % 2 else p.grad.numpy() for place, p in enumerate(params)]
    read.append([np.abs(view).sum() for view in views])
    optimizer.step()
report(ddp, read=read)
