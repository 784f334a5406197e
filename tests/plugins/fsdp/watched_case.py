"""A rank of an FSDP2 job of two: it trains until there is a file of the name that it is given."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    for module in (*model, model):
        fully_shard(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    stop = torch.zeros(1)
    while not stop:
        model(torch.ones(2, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        stop.fill_(Path(sys.argv[1]).exists())
        dist.all_reduce(stop)
    dist.destroy_process_group()
