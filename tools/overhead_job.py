"""A rank of the job by which the cost of watching is measured: it trains, and is watched in turns.

Rule of this file: what runs in the ranks of overhead.py. All ranks change what they say after the same iteration, so a
turn is one of all. A turn's iterations are timed one by one, and processor time together: that of the whole process,
that of Prophet's threads, and that of the code that does nothing but watch. What training's own threads do for who
watches is timed call by call, before the first turn.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_ddp import takeover
from prophet_ddp.agent import WatchingAgent
from prophet_ddp.events import EventLog
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.watch import training
from prophet_scheduler.watch.observer import Observer

VARIANTS = ("nothing", "status", "top", "record", "metrics", "all")
"""Features that are on in a turn; `nothing` is what the others are compared with. Nobody asks for `status`; `top` is a
status for which `prophet top` asks."""
ASKED, ALONE = "asked", "alone"
"""Folders of sockets, in XDG_RUNTIME_DIR: one that is asked, and one in which nobody looks."""
ANSWERING = "prophet-status"
"""Thread that only answers requests."""
WATCHING_THREADS = ("prophet-agent", ANSWERING)
"""Threads of all watching, except the calls of training's own threads. The first one learns as well."""
LAYERS, WIDTH, SAMPLES = 24, 256, 128
SETTLE_ITERATIONS = 300
"""Iterations before the first turn: Prophet measures the network and takes up its plan."""
PASSED_OVER = 5
"""Iterations after a change that do not count."""
TIMED_ITERATIONS = 100
"""Iterations in which calls are timed one by one."""


def is_asked(variant: str) -> bool:
    return variant in ("top", "all")


def settings_of(variant: str, base: Settings, folder: Path, port: int) -> Settings:
    return dataclasses.replace(
        base,
        status=variant == "status" or is_asked(variant),
        record=folder if variant in ("record", "all") else None,
        metrics_port=port if variant in ("metrics", "all") else None,
    )


def threads_s(names: Sequence[str] = WATCHING_THREADS) -> float:
    """Return the processor seconds of the present threads of these names, since each began."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name in names]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


@contextmanager
def timed(
    owner: object, *names: str, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, list[float]]]:
    """Time the calls of the owner's functions while the context lasts. Yields the seconds of each call, by name.

    A median of them is of the call alone: in few does another thread take over.
    """
    took: dict[str, list[float]] = {name: [] for name in names}
    before = {name: getattr(owner, name) for name in names}

    def timing(name: str) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            began_s = clock()
            try:
                return before[name](*arguments, **keywords)
            finally:
                took[name].append(clock() - began_s)

        return call

    for name in names:
        setattr(owner, name, timing(name))
    try:
        yield took
    finally:
        for name, call in before.items():
            setattr(owner, name, call)


class WatchedJob:
    """The model, its rounds and their settings."""

    def __init__(self, folder: Path, port: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(SAMPLES, WIDTH)
        self._folder, self._port = folder, port
        self._runtime = Path(os.environ["XDG_RUNTIME_DIR"])
        self._decides = dist.get_rank() == 0
        self._told = takeover.settings()
        # The deciding rank has its agent in any case; the others have one for watching alone.
        self._timing = timed(Observer if self._decides else WatchingAgent, "turn", clock=time.thread_time)
        self._looks_s = self._timing.__enter__()["turn"]

    def iterate(self, count: int) -> list[float]:
        """Train, and return the seconds of each iteration."""
        marks = [time.monotonic()]
        for _ in range(count):
            self._optimizer.zero_grad()
            self._model(self._inputs).square().mean().backward()
            self._optimizer.step()
            marks.append(time.monotonic())
        return [after - before for before, after in itertools.pairwise(marks)]

    def say(self, variant: str) -> None:
        """Report as the variant says from here on. What is off is off as in a job that was never told."""
        settings = settings_of(variant, self._told, self._folder, self._port)
        sockets = self._runtime / (ASKED if is_asked(variant) else ALONE)
        sockets.mkdir(exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(sockets)
        if not settings.watched:
            training.switch_off()
        takeover._records.watch_by(settings)
        if settings.watched or self._decides:
            self._events.reopen()
        else:
            self._events.close()

    def time_calls(self) -> list[dict[str, Any]]:
        """Return for each call of training's own threads for watching its count an iteration, and its seconds."""
        self.say("status")
        self.iterate(PASSED_OVER)
        # The deciding rank keeps events in any case.
        events = () if self._decides else ("_write",)
        with timed(training, "iteration_ended", "waiting", "over") as calls, timed(self._events, *events) as writes:
            self.iterate(TIMED_ITERATIONS)
        return [
            {"call": name, "count": len(took) / TIMED_ITERATIONS, "call_s": statistics.median(took)}
            for name, took in {**calls, **writes}.items()
            if took
        ]

    def watching_s(self) -> float:
        """Return the processor seconds so far of code that only watches, without calls of training's own threads."""
        return sum(self._looks_s) + threads_s((ANSWERING,))

    @property
    def _events(self) -> EventLog:
        reducer: Any = self._model.reducer
        log: EventLog = reducer.rounds.log
        return log


def agreed(seconds: float) -> float:
    """Return the most of the ranks' values."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def main() -> None:
    """Train in turns, and leave the times of each. Arguments: a folder, cycles, seconds of a turn, each rank's port."""
    out, cycles, seconds, ports = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = WatchedJob(out / "record", int(ports[rank]))
    times = job.iterate(SETTLE_ITERATIONS)
    count = math.ceil(seconds / agreed(statistics.median(times)))
    calls = job.time_calls()
    turns = []
    for cycle in range(cycles):
        # Each cycle begins with another one, so that none always comes after the same.
        for variant in VARIANTS[cycle % len(VARIANTS) :] + VARIANTS[: cycle % len(VARIANTS)]:
            job.say(variant)
            job.iterate(PASSED_OVER)
            clocks: dict[str, Callable[[], float]] = {
                "cpu_s": time.process_time,
                "threads_s": threads_s,
                "watching_s": job.watching_s,
            }
            before = {name: clock() for name, clock in clocks.items()}
            took = job.iterate(count)
            row = {name: (clock() - before[name]) / count for name, clock in clocks.items()}
            turns.append({"cycle": cycle, "variant": variant, "iteration_s": took, **row})
    job.say("nothing")
    text = json.dumps({"turns": turns, "calls": calls})
    (out / f"rank{rank}.json").write_text(text, encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
