"""A second backward pass through the same graph, which torch averages no more."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)

torch.manual_seed(100 + dist.get_rank())
grads = []
for iteration in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    outputs = ddp(inputs)
    nn.functional.cross_entropy(outputs, labels).backward(retain_graph=True)
    if iteration % 2:
        outputs.square().mean().backward()
    grads += [p.grad.sum() for p in ddp.parameters()]
    for p in ddp.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
report(ddp, grads=grads)
