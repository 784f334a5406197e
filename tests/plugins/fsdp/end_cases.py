"""A rank of an FSDP2 job of two: `end_cases.py RANK MEETING`, where MEETING is a file by which they find each other.
With `sums` behind them torch leaves sums in place of averages.

Rank 1 ends before the last iteration, as if it were done. Rank 0 prints what comes of that.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

ITERATIONS = 4

if __name__ == "__main__":
    rank, meeting, *sums = sys.argv[1:]
    if sums:
        average = DefaultReduceScatter.__call__
        DefaultReduceScatter.__call__ = lambda self, output, input, group, op, *_: average(  # type: ignore[method-assign]
            self, output, input, group, dist.ReduceOp.SUM
        )
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=int(rank), world_size=2)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    for module in (*model, model):
        fully_shard(module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(ITERATIONS - int(rank)):
        try:
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        except RuntimeError as error:
            print(f"caught {error}")
