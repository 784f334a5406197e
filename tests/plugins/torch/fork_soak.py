"""Forks at random moments of a job of two ranks, whose children evaluate: `fork_soak.py COUNT`.

Each rank trains and forks in its main thread: in the middle of a forward pass, between backward and step, after a step.
Chance decides what the agent, gloo and the threads that watch do then. A child looks at the model in every way that
takes a lock, and reports through a pipe. No other thread forks: that may copy a held lock of torch's own (each
parameter has one), which no child gets, with Prophet and without.

Prints one line: how many forks there were, and how many children said nothing within LIMIT_S.
"""

from __future__ import annotations

import logging
import os
import random
import select
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tools.ports import free_port

RANKS = 2
LIMIT_S = 20.0


def look(ddp: Any, optimizer: torch.optim.Optimizer, kept: Sequence[torch.Tensor]) -> None:
    """Look at the model as a child does, without a gradient that others would have to average."""
    logging.getLogger("prophet_scheduler").debug("a child")
    for layer in ddp.module:
        layer._forward_hooks.clear()
    with torch.no_grad():
        ddp.module(torch.ones(2, 32)).sum().item()
        sum(param.sum().item() for param in kept)
    sum(param.abs().sum().item() for param in ddp.parameters())
    len(ddp.state_dict()), len(optimizer.state_dict())
    ddp.module(torch.ones(2, 32)).sum().item()  # with a graph
    from prophet_ddp.agent import agents

    rounds = ddp.reducer.rounds
    rounds.flush()
    with rounds._lock, rounds.channel.issuer._lock, rounds.channel.control._lock:
        agents.thread.wake()
    optimizer.zero_grad()


def answers(look_there: Any) -> bool:
    """Fork a child that looks. Return True if it reports in time."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receiving)
        status = 1
        try:
            look_there()
            os.write(sending, b"!")
            status = 0
        finally:
            os._exit(status)
    os.close(sending)
    there = bool(select.select([receiving], [], [], LIMIT_S)[0]) and os.read(receiving, 1) == b"!"
    os.close(receiving)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return there


def train(rank: int, count: int) -> tuple[int, int]:
    """Train until there were `count` forks in all ranks. Return (forks, children that said nothing) of this rank."""
    torch.manual_seed(0)
    inner = nn.Sequential(*(nn.Linear(32, 32) for _ in range(8)))
    ddp = DistributedDataParallel(inner)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    kept = list(ddp.parameters())
    results: list[bool] = []

    def step(between: Callable[[], None]) -> None:
        optimizer.zero_grad()
        ddp(torch.full((4, 32), rank + 1.0)).square().mean().backward()
        between()
        optimizer.step()

    def fork(*_: Any) -> None:
        if random.random() < 0.1:
            results.append(answers(lambda: look(ddp, optimizer, kept)))

    for _ in range(5):
        step(lambda: None)
    for place in (2, 5):
        inner[place].register_forward_hook(fork)
    total, everywhere = torch.zeros(1), 0
    while everywhere < count:
        for _ in range(10):
            step(fork)
            fork()
        total.fill_(len(results))
        dist.all_reduce(total)
        everywhere = int(total.item())
    return len(results), results.count(False)


def run_rank(rank: int, count: int, port: int) -> None:
    """The life of one rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    os.environ.update(PROPHET_SCHEDULER="prophet", PROPHET_CACHE="off", PROPHET_PARTITION_BYTES="262144")
    import prophet_ddp.autoload  # noqa: F401, as the line in site-packages does

    dist.init_process_group("gloo")
    forks, silent = train(rank, count)
    Path(f"rank{rank}").write_text(f"{forks} {silent}")
    dist.destroy_process_group()


def main(count: int) -> None:
    """Runs the ranks in the folder where the process is."""
    port = free_port()
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            run_rank(rank, count, port)
            raise SystemExit(0)
        pids.append(pid)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    rows = [tuple(map(int, Path(f"rank{rank}").read_text().split())) for rank in range(RANKS) if not any(statuses)]
    print("forks", sum(forks for forks, _ in rows), "silent", sum(silent for _, silent in rows), "statuses", statuses)


if __name__ == "__main__":
    main(int(sys.argv[1]))
