"""A module wrapped a second time while the first wrapper lives, and after it is gone."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
losses, states = [], []


def train(ddp, iterations):
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-2)
    for _ in range(iterations):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states.append(optimizer.state_dict())


torch.manual_seed(100 + dist.get_rank())
first = DistributedDataParallel(model)
train(first, 4)
second = DistributedDataParallel(model)
train(second, 4)
train(second, 4)
del first, second
third = DistributedDataParallel(model, find_unused_parameters=True)
train(third, 4)
half = DistributedDataParallel(nn.Sequential(*list(model)[:3]))
optimizer = torch.optim.SGD(half.parameters(), lr=0.1)
for _ in range(4):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    half(inputs).square().mean().backward()
    optimizer.step()
report(model, losses=losses, states=states)
