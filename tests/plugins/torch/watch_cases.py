"""A rank of a job that trains until the file named as argument is there; for test_watching.py."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

MOST_ROUNDS = 50_000


def over(file: Path) -> bool:
    """Whether any rank sees it."""
    flag = torch.tensor(float(file.exists()))
    dist.all_reduce(flag)
    return bool(flag > 0)


def main(file: Path) -> DistributedDataParallel:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(MOST_ROUNDS):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        if iteration % 20 == 19 and over(file):
            return model
    sys.exit(3)


if __name__ == "__main__":
    trained = main(Path(sys.argv[1]))
    dist.destroy_process_group()
