"""A job of DistributedDataParallel as a user has one; release_checks.py starts it with torchrun."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ITERATIONS = 20
"""Iterations, enough for Prophet to have learned the job and planned it."""


def main() -> None:
    """Train, and end with an error if the ranks' weights differ."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    own = torch.cat([param.detach().flatten() for param in model.parameters()])
    first = own.clone()
    dist.broadcast(first, 0)
    assert torch.equal(own, first), "the ranks have different weights"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
