"""zero_grad() after the forward pass, between backward and step, and of the module."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(12):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    if iteration % 3 == 0:
        optimizer.zero_grad(set_to_none=False)
    elif iteration % 3 == 1:
        ddp.zero_grad()
    else:
        model.zero_grad(set_to_none=False)
    loss.backward()
    if iteration % 4 == 2:
        optimizer.zero_grad(set_to_none=iteration % 8 == 2)
    optimizer.step()
    losses.append(loss.item())
report(ddp, state=optimizer.state_dict(), losses=losses)
