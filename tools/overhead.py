"""Cost of watching a job: the status socket, the record and the metrics, each on and off, in one run.

Rule of this file: the job, and the client that asks it. The job is a real DistributedDataParallel job under Prophet on
this machine's loopback; a rank is `python -m tools.overhead`. While it trains, the client asks for its status and its
metrics each second, as `prophet top` and Prometheus do.

Elapsed time varies by a percent from turn to turn, more than the cost of watching. So processor time is measured: that
of the watching threads, and that of watching in training's own threads. All ranks change their features after the same
iteration. Watching in training's own threads is timed call by call, before the first turn.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from rich.console import Console
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from prophet_ddp import takeover
from prophet_ddp.agent import WatchingAgent, records
from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.watch import training
from prophet_scheduler.watch.observer import Observer
from tools.ports import free_port

STATUS, ASKED, RECORD, METRICS = "status", "asked", "record", "metrics"
VARIANTS: Mapping[str, Sequence[str]] = {
    "nothing": (),
    "status": (STATUS,),
    "top": (STATUS, ASKED),
    "record": (RECORD,),
    "metrics": (METRICS,),
    "all": (STATUS, ASKED, RECORD, METRICS),
}
"""Features that are on in a turn. With `asked`, `prophet top` asks for the status."""
ANSWERING = "prophet-status"
"""Thread that only answers requests."""
WATCHING_THREADS = ("prophet-agent", ANSWERING)
"""Threads that do all watching outside training's own threads. The first one learns as well."""
LAYERS, WIDTH, SAMPLES = 24, 256, 128
SETTLE_ITERATIONS = 300
"""Iterations before the first turn, in which Prophet measures the network and adopts its plan."""
PASSED_OVER = 5
"""Iterations after a change of features that do not count."""
TIMED_ITERATIONS = 100
"""Iterations in which calls are timed one by one."""
RANKS = 2
SETTINGS = {
    **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    **{"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": "off", "PROPHET_QUIET": "1"},
    **{"PROPHET_PARTITION_BYTES": str(256 * 1024), "PROPHET_MONITOR_S": "3600"},
}
"""Blocks have one size in all turns. Prophet plans once, before the first turn: learning costs more than watching."""
WIDTH_OF_TOP = 120
"""Columns of the terminal."""
TRIM = 0.02
"""Share of a turn's iterations, the longest, to leave out: the machine was busy with something else."""


def settings_of(variant: str, base: Settings, folder: Path, port: int) -> Settings:
    on = VARIANTS[variant]
    record, metrics_port = folder if RECORD in on else None, port if METRICS in on else None
    return dataclasses.replace(base, status=STATUS in on, record=record, metrics_port=metrics_port)


def threads_s(names: Sequence[str] = WATCHING_THREADS) -> float:
    """Return the total processor seconds of the live threads with these names."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name in names]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


@contextlib.contextmanager
def timed(
    owner: object, *names: str, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, list[float]]]:
    """Time the calls of the owner's functions `names` within the context. Yields the seconds of each call, by name."""
    took: dict[str, list[float]] = {name: [] for name in names}

    def timing(name: str) -> Callable[..., object]:
        function = getattr(owner, name)

        def call(*arguments: object, **keywords: object) -> object:
            began_s = clock()
            try:
                return function(*arguments, **keywords)
            finally:
                took[name].append(clock() - began_s)

        return call

    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(owner, name, timing(name)))
        yield took


class WatchedJob:
    """A rank's model and optimizer, and the features that watch it."""

    def __init__(self, folder: Path, port: int) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        self._model: Any = DistributedDataParallel(nn.Sequential(*layers))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(SAMPLES, WIDTH)
        self._folder, self._port = folder, port
        self._runtime = Path(os.environ["XDG_RUNTIME_DIR"])
        self._decides = dist.get_rank() == 0
        self._told = takeover.settings()
        # The deciding rank always has an agent; the others have one only for watching.
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
        """Switch to the variant's features. Others are off as in a job without their settings."""
        settings = settings_of(variant, self._told, self._folder, self._port)
        # The client asks only in one of the folders of sockets.
        sockets = self._runtime / (ASKED if ASKED in VARIANTS[variant] else "alone")
        sockets.mkdir(exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(sockets)
        if not settings.watched:
            training.switch_off()
        records.watch_by(settings)
        log = self._model.reducer.rounds.log
        if settings.watched or self._decides:
            log.reopen()
        else:
            log.close()

    def time_calls(self) -> list[dict[str, Any]]:
        """Return each function that training's own threads call for watching: calls per iteration, seconds of one."""
        self.say("status")
        self.iterate(PASSED_OVER)
        # The deciding rank always keeps events.
        events = () if self._decides else ("_write",)
        with (
            timed(training, "iteration_ended", "waiting", "over") as calls,
            timed(self._model.reducer.rounds.log, *events) as writes,
        ):
            self.iterate(TIMED_ITERATIONS)
        return [
            {"call": name, "count": len(took) / TIMED_ITERATIONS, "call_s": statistics.median(took)}
            for name, took in {**calls, **writes}.items()
            if took
        ]

    def turn(self, variant: str, count: int) -> dict[str, Any]:
        """Train `count` iterations. Return their mean seconds, and processor seconds of an iteration: of the process,
        of Prophet's threads, and of code that only watches, without calls in training's own threads.
        """
        self.say(variant)
        self.iterate(PASSED_OVER)
        clocks: dict[str, Callable[[], float]] = {
            "cpu_s": time.process_time,
            "threads_s": threads_s,
            "watching_s": lambda: sum(self._looks_s) + threads_s((ANSWERING,)),
        }
        before = {name: clock() for name, clock in clocks.items()}
        iteration_s = mean_s(self.iterate(count))
        took = {name: (clock() - before[name]) / count for name, clock in clocks.items()}
        return {"variant": variant, "iteration_s": iteration_s, **took}


def mean_s(times: Sequence[float]) -> float:
    """Return the mean of a turn's iterations, without the longest TRIM."""
    return statistics.fmean(sorted(times)[: max(1, len(times) - int(len(times) * TRIM))])


def main() -> None:
    """Train in turns, and write the times of each. Arguments: a folder, cycles, seconds of a turn, each rank's port."""
    out, cycles, seconds, ports = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = WatchedJob(out / "record", int(ports[rank]))
    slowest = torch.tensor(statistics.median(job.iterate(SETTLE_ITERATIONS)), dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    count, calls, variants, turns = math.ceil(seconds / float(slowest)), job.time_calls(), [*VARIANTS], []
    for cycle in range(cycles):
        # Each cycle begins with another variant, so that none is always first.
        first = cycle % len(variants)
        turns += [
            {"rank": rank, "cycle": cycle, **job.turn(variant, count)}
            for variant in variants[first:] + variants[:first]
        ]
    job.say("nothing")
    found = {"turns": turns, "calls": [{"rank": rank, **call} for call in calls]}
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def measure(out: Path, results: Path, *, cycles: int = 10, seconds: float = 5.0) -> dict[str, Any]:
    """Run the job, in `cycles` of turns of `seconds` each. Raises UserError if it fails.

    `looks` counts those of `prophet top` at both ranks, each of `look_s` of its processor time; `fetched` counts a
    rank's answers with metrics, and `load` is the load average at the end.
    """
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ports = [free_port() for _ in range(RANKS)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = ["-m", "tools.overhead", str(out), str(cycles), str(seconds), *map(str, ports)]
    ends_at = time.monotonic() + 120 + 3 * cycles * len(VARIANTS) * seconds
    screen = Console(file=io.StringIO(), width=WIDTH_OF_TOP, force_terminal=True)
    looks_s, fetched = list[float](), 0
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime, (out / "ranks.log").open("wb") as log:
        own = SETTINGS | {"XDG_RUNTIME_DIR": runtime}
        process = subprocess.Popen([*torchrun, *job], env=without_jobs(os.environ) | own, stdout=log, stderr=log)
        try:
            while process.poll() is None and time.monotonic() < ends_at:
                time.sleep(1.0)
                before = time.process_time()
                if documents := ask_all([Path(runtime, ASKED, "prophet")]):
                    screen.print(view(statuses(documents), time.time(), WIDTH_OF_TOP))
                    looks_s.append(time.process_time() - before)
                for port in ports:
                    address = f"http://127.0.0.1:{port}/metrics"
                    with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as answer:
                        fetched += bool(answer.read())
        finally:
            process.terminate()  # it ends the ranks
            process.wait()
    if process.returncode != 0:
        raise UserError(f"the job failed or was not over in time; its output is in {out}/ranks.log")
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(RANKS)]
    found = {key: [row for rank in ranks for row in rank[key]] for key in ("turns", "calls")}
    asked = {"looks": len(looks_s), "look_s": sum(looks_s) / max(1, len(looks_s)), "fetched": fetched}
    return {**found, "seconds": seconds, **asked, "load": os.getloadavg()[0]}


if __name__ == "__main__":
    main()
