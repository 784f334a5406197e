"""References to `.grad` from before step() and zero_grad(), read after the next pass has begun."""

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
optimizer = torch.optim.Adam(params, lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
seen, history = [], []
for _ in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    nn.functional.cross_entropy(ddp(inputs), labels).backward()
    history.append([p.grad for p in params])
    optimizer.step()
    optimizer.zero_grad()
for grads in history:
    seen += [grad.double().sum().item() for grad in grads]
report(ddp, state=optimizer.state_dict(), seen=seen)
