"""A rank of a job that trains on and on; for test_records.py and test_watching.py.

Arguments say until when: `planned`, until Prophet has made a plan; `fallback`, until a hook of the script's own is
registered, after some iterations; a file, until it is there.
"""

import sys  # no postponed annotations: torch looks at those of a hook
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

MOST_ROUNDS = 500_000
LOOK_EVERY = 20
"""Number of iterations between looks, since all ranks have to look together."""


def own_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    dist.all_reduce(bucket.buffer())
    done = torch.futures.Future[torch.Tensor]()
    done.set_result(bucket.buffer())
    return done


def keep_the_reducer() -> None:
    """Give torch's reducer no turns: on a busy machine it may be faster in so small a job, and would stay."""
    from prophet_ddp.turns import Turns

    turns: Any = Turns
    turns.possible = False


def over(until: str) -> bool:
    """Return True if `until` has come on any rank."""
    from prophet_ddp.agent import records

    flag = torch.tensor(float(records.status().plans if until == "planned" else Path(until).exists()))
    dist.all_reduce(flag)
    return bool(flag > 0)


def main(until: str) -> DistributedDataParallel:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    keep_the_reducer()
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for iteration in range(1, MOST_ROUNDS):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        if until == "fallback" and iteration == 3:
            model.register_comm_hook(None, own_hook)
            return model
        if iteration % LOOK_EVERY == 0 and over(until):
            return model
    sys.exit(3)


if __name__ == "__main__":
    trained = main(sys.argv[1])
    dist.destroy_process_group()
