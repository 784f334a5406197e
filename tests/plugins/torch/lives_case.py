"""Two lives of a job in one store, as torchrun has it where ranks may be restarted: `lives_case.py [plain]`.

The first life ends where it has begun. In the second one rank 1 is there before rank 0 is started: what it reads of
rank 0 meanwhile is an earlier life's. Prints the statuses of each life's ranks.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
LIMIT_S = 60.0


def train() -> None:
    """Train for three steps, and print the weights."""
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        ddp(torch.ones(2, 8)).square().mean().backward()
        optimizer.step()
    # In one piece, since the other rank writes to the same pipe.
    sys.stdout.write(f"weights {sum(float(param.detach().double().sum()) for param in ddp.parameters())}\n")
    sys.stdout.flush()


def rank_of(life: int, rank: int, plain: bool) -> int:
    """Fork a rank. Return its process."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.environ["RANK"] = str(rank)
        if not plain:
            os.environ.update(PROPHET_SCHEDULER="prophet", PROPHET_CACHE="off", PROPHET_QUIET="1")
            import prophet_ddp.autoload  # noqa: F401, as the line in site-packages does
        dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
        if life == 1:
            train()
            # Another group in the same store, as for a program that begins once more.
            dist.destroy_process_group()
            dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
            train()
        dist.destroy_process_group()
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


def status_of(pid: int) -> int:
    """Return the exit status of that process."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kept(store: Any) -> dict[str, bytes]:
    """Return all that is in the store."""
    return {key: store.get(key) for key in store.list_keys()}


def main(plain: bool) -> None:
    """Run both lives."""
    store = vars(dist)["TCPStore"]("127.0.0.1", 0, None, True, wait_for_workers=False)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port), WORLD_SIZE=str(RANKS))
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_MAX_RESTARTS="3")
    first = [rank_of(0, rank, plain) for rank in range(RANKS)]
    print("statuses", *map(status_of, first), flush=True)
    known = kept(store)
    early = rank_of(1, 1, plain)
    limit_s = time.monotonic() + LIMIT_S
    while kept(store) == known and time.monotonic() < limit_s:  # until the early rank has come
        time.sleep(0.01)
    late = rank_of(1, 0, plain)
    print("statuses", *map(status_of, (late, early)), flush=True)


if __name__ == "__main__":
    main("plain" in sys.argv[1:])
