"""Uneven inputs: join() after some steps as usual."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)


def train(iterations):
    for _ in range(iterations):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(inputs), labels).backward()
        optimizer.step()


torch.manual_seed(100 + dist.get_rank())
train(4)
with ddp.join():
    train(3 + 2 * dist.get_rank())
other = DistributedDataParallel(nn.Linear(32, 10))
with Join([other]):
    for _ in range(2 + dist.get_rank()):
        other(torch.randn(16, 32)).square().mean().backward()
dist.barrier()
train(2)
report(list(ddp.parameters()), buffers=[b.double() for b in ddp.buffers()], grads=[p.grad for p in other.parameters()])
