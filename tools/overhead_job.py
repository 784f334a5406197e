"""A rank of the job by which the cost of watching is measured: it trains, and is watched in turns.

Rule of this file: what runs in the ranks of overhead.py. All ranks change what they say after the same iteration, so a
turn is one of all. A turn's iterations are timed one by one, and their processor time together.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet.core.settings import Settings
from prophet.watch import training
from prophet_ddp import takeover

VARIANTS = ("nothing", "status", "record", "metrics", "all")
"""What is on in a turn; `nothing` is what the others are compared with."""
LAYERS, WIDTH, SAMPLES = 24, 256, 128
SETTLE_ITERATIONS = 300
"""Before the first turn: Prophet measures the network and takes up its plan."""
PASSED_OVER = 5
"""Iterations after a change that do not count."""


def settings_of(variant: str, base: Settings, folder: Path, port: int) -> Settings:
    """What a turn is told."""
    return dataclasses.replace(
        base,
        status=variant in ("status", "all"),
        record=folder if variant in ("record", "all") else None,
        metrics_port=port if variant in ("metrics", "all") else None,
    )


class WatchedJob:
    """The model, its rounds and what they are told."""

    def __init__(self, folder: Path, port: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(SAMPLES, WIDTH)
        self._folder, self._port = folder, port
        self._told = takeover.settings()

    def iterate(self, count: int) -> list[float]:
        """Trains; seconds of each iteration."""
        marks = [time.monotonic()]
        for _ in range(count):
            self._optimizer.zero_grad()
            self._model(self._inputs).square().mean().backward()
            self._optimizer.step()
            marks.append(time.monotonic())
        return [after - before for before, after in itertools.pairwise(marks)]

    def say(self, variant: str) -> None:
        """From here on. What is off is off as in a job that was never told."""
        settings = settings_of(variant, self._told, self._folder, self._port)
        if not settings.watched:
            training.switch_off()
        takeover._records.watch_by(settings)
        # The rank that decides keeps events in any case.
        reducer: Any = self._model.reducer
        log = reducer.rounds.log
        if settings.watched or dist.get_rank() == 0:
            log.reopen()
        else:
            log.close()


def agreed(seconds: float) -> float:
    """The most of what the ranks say."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def main() -> None:
    """Trains in turns, and leaves what each took."""
    parser = argparse.ArgumentParser(prog="python -m tools.overhead_job", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cycles", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = WatchedJob(options.out / "record", options.port + rank)
    times = job.iterate(SETTLE_ITERATIONS)
    count = math.ceil(options.seconds / agreed(sorted(times)[len(times) // 2]))
    turns = []
    for cycle in range(options.cycles):
        # Each cycle begins with another one, so that none always comes after the same.
        for variant in VARIANTS[cycle % len(VARIANTS) :] + VARIANTS[: cycle % len(VARIANTS)]:
            job.say(variant)
            job.iterate(PASSED_OVER)
            began_s = time.process_time()
            took = job.iterate(count)
            cpu_s = time.process_time() - began_s
            turns.append({"cycle": cycle, "variant": variant, "iteration_s": took, "cpu_s": cpu_s / count})
    job.say("nothing")
    text = json.dumps({"rank": rank, "pid": os.getpid(), "turns": turns})
    (options.out / f"rank{rank}.json").write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
