"""Cost of watching a job: the status socket, the record and the metrics, each on and off, in one run.

Rule of this file: the job, and the client that asks it. The job is a real DistributedDataParallel job under Prophet on
this machine's loopback; a rank is `python -m tools.overhead`. While it trains, the client asks for its status and its
metrics each second, as `prophet top` and Prometheus do. `make overhead` runs it; it takes about six minutes on a quiet
machine.

Elapsed time varies by a percent from turn to turn, more than the cost of watching. So processor time is measured: that
of the watching threads, and that of watching in training's own threads.

All ranks change their features after the same iteration, so a turn is the same on all. A turn's iterations are timed
one by one; processor time is measured over the turn: of the whole process, of Prophet's threads, and of the code that
only watches. Watching in training's own threads is timed call by call, before the first turn.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from prophet_ddp.events import EventLog
from prophet_scheduler.cli.top import ask_all, statuses
from prophet_scheduler.cli.top_view import view
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import Settings
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.watch import training
from prophet_scheduler.watch.observer import Observer
from tools.ports import free_port

VARIANTS = ("nothing", "status", "top", "record", "metrics", "all")
"""Features that are on in a turn. `nothing` is the baseline. With `status` nobody asks; with `top`, `prophet top` asks
for the status."""
ASKED, ALONE = "asked", "alone"
"""Folders of sockets, in XDG_RUNTIME_DIR: one that the client asks, and one that nobody reads."""
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
BLOCK_BYTES = 256 * 1024
"""Fixed size of blocks, so that it is the same in all turns."""
JUDGED_EVERY_S = 3600.0
"""Seconds between plans. The first rank plans once, before the first turn: learning costs more than watching."""
SETTINGS = {
    **{"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    **{"PROPHET_SCHEDULER": "prophet", "PROPHET_CACHE": "off", "PROPHET_QUIET": "1"},
    **{"PROPHET_PARTITION_BYTES": str(BLOCK_BYTES), "PROPHET_MONITOR_S": str(JUDGED_EVERY_S)},
}
LOG = "ranks.log"
ASK_EVERY_S = 1.0
WIDTH_OF_TOP = 120
"""Columns of the terminal."""
TRIM = 0.02
"""Share of a turn's iterations, the longest, to leave out: the machine was busy with something else."""


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
    """Return the total processor seconds of the live threads with these names."""
    idents = [thread.ident for thread in threading.enumerate() if thread.name in names]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents if ident is not None)


@contextmanager
def timed(
    owner: object, *names: str, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, list[float]]]:
    """Time the calls of the owner's functions `names` within the context. Yields the seconds of each call, by name.

    Use their median: other threads interrupt few of the calls.
    """
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
        self._model = DistributedDataParallel(nn.Sequential(*layers))
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
        sockets = self._runtime / (ASKED if is_asked(variant) else ALONE)
        sockets.mkdir(exist_ok=True)
        os.environ["XDG_RUNTIME_DIR"] = str(sockets)
        if not settings.watched:
            training.switch_off()
        records.watch_by(settings)
        if settings.watched or self._decides:
            self._events.reopen()
        else:
            self._events.close()

    def time_calls(self) -> list[dict[str, Any]]:
        """Return each function that training's own threads call for watching: calls per iteration, seconds of one."""
        self.say("status")
        self.iterate(PASSED_OVER)
        # The deciding rank always keeps events.
        events = () if self._decides else ("_write",)
        with timed(training, "iteration_ended", "waiting", "over") as calls, timed(self._events, *events) as writes:
            self.iterate(TIMED_ITERATIONS)
        return [
            {"call": name, "count": len(took) / TIMED_ITERATIONS, "call_s": statistics.median(took)}
            for name, took in {**calls, **writes}.items()
            if took
        ]

    def watching_s(self) -> float:
        """Return the processor seconds so far of code that only watches, without calls in training's own threads."""
        return sum(self._looks_s) + threads_s((ANSWERING,))

    @property
    def _events(self) -> EventLog:
        reducer: Any = self._model.reducer
        log: EventLog = reducer.rounds.log
        return log


def agreed(seconds: float) -> float:
    """Return the maximum of the ranks' values."""
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def main() -> None:
    """Train in turns, and write the times of each. Arguments: a folder, cycles, seconds of a turn, each rank's port."""
    out, cycles, seconds, ports = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    job = WatchedJob(out / "record", int(ports[rank]))
    times = job.iterate(SETTLE_ITERATIONS)
    count = math.ceil(seconds / agreed(statistics.median(times)))
    calls = job.time_calls()
    turns = []
    for cycle in range(cycles):
        # Each cycle begins with another variant, so that none is always first.
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


def mean_s(times: Sequence[float]) -> float:
    """Return the mean of a turn's iterations, without the longest TRIM."""
    ranked = sorted(times)
    return statistics.fmean(ranked[: max(1, len(ranked) - int(len(ranked) * TRIM))])


def read_ranks(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the turns and calls that the ranks wrote. Raises UserError if one wrote nothing.

    A turn has, in seconds per iteration, the mean elapsed time and the processor time: of the process, of Prophet's
    threads, and of the code that only watches. A call, in training's threads for watching, has its count per iteration
    and the seconds of one.
    """
    found: dict[str, list[dict[str, Any]]] = {"turns": [], "calls": []}
    for rank in range(RANKS):
        path = folder / f"rank{rank}.json"
        if not path.exists():
            raise UserError(f"{path}: rank {rank} left nothing; its output is in {folder / LOG}")
        left = json.loads(path.read_text(encoding="utf-8"))
        found["turns"] += [{"rank": rank, **row, "iteration_s": mean_s(row["iteration_s"])} for row in left["turns"]]
        found["calls"] += [{"rank": rank, **row} for row in left["calls"]]
    return found


class Asker:
    """Client that asks like `prophet top` and Prometheus, if the job listens."""

    def __init__(self, folder: Path, ports: Sequence[int]) -> None:
        self.looks = 0
        self.looked_s = 0.0
        """Processor seconds of all looks."""
        self.fetched = 0
        self._folder = folder
        self._addresses = [f"http://127.0.0.1:{port}/metrics" for port in ports]
        self._screen = Console(file=io.StringIO(), width=WIDTH_OF_TOP, force_terminal=True)

    def ask(self) -> None:
        before = time.process_time()
        documents = ask_all([self._folder])
        if documents:
            self._screen.print(view(statuses(documents), time.time(), WIDTH_OF_TOP))
            self.looks += 1
            self.looked_s += time.process_time() - before
        for address in self._addresses:
            with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=1) as answer:
                self.fetched += bool(answer.read())


def measure(out: Path, results: Path, *, cycles: int = 10, seconds: float = 5.0) -> dict[str, Any]:
    """Run the job, in `cycles` of turns of `seconds` each. Raises UserError if it fails.

    `looks` counts those of `prophet top` at both ranks, each of `look_s` of its processor time; `fetched` counts a
    rank's answers with metrics, and `load` is the load average at the end.
    """
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    for old in out.glob("rank*.json"):
        old.unlink()
    ports = [free_port() for _ in range(RANKS)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    job = ["-m", "tools.overhead", str(out), str(cycles), str(seconds), *map(str, ports)]
    limit_s = 120 + 3 * cycles * len(VARIANTS) * seconds
    with tempfile.TemporaryDirectory(prefix="prophet-") as runtime, (out / LOG).open("wb") as log:
        own = SETTINGS | {"XDG_RUNTIME_DIR": runtime}
        process = subprocess.Popen([*torchrun, *job], env=without_jobs(os.environ) | own, stdout=log, stderr=log)
        try:
            asker = Asker(Path(runtime, ASKED, "prophet"), ports)
            ends_at = time.monotonic() + limit_s
            while process.poll() is None:
                if time.monotonic() >= ends_at:
                    raise UserError(f"the job is not over after {limit_s:.0f} s; see {out}")
                time.sleep(ASK_EVERY_S)
                asker.ask()
        finally:
            process.terminate()  # it ends the ranks
            process.wait()
    asked = {"looks": asker.looks, "look_s": asker.looked_s / max(1, asker.looks), "fetched": asker.fetched}
    return {**read_ranks(out), "seconds": seconds, **asked, "load": os.getloadavg()[0]}


if __name__ == "__main__":
    main()
