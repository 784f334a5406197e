"""A rank of a DistributedDataParallel job that prints which modules of the project it has imported, one a line.

The arguments: its rank, and a file by which the two ranks meet.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

import prophet_ddp.autoload  # noqa: F401, as the line in site-packages does

if __name__ == "__main__":
    rank, meeting = sys.argv[1:]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(torch.ones(1, 64)).sum().backward()
        optimizer.step()
    for name in sorted(sys.modules):
        if f"{name}.".startswith(("prophet_", "numpy.typing.")):
            print(name)
    dist.destroy_process_group()
