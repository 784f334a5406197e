"""Cost of MLfabric's coordinator, and its behavior when killed or flooded.

Rule of this file: the loads on a real coordinator, and its measurements. The coordinator is `prophet coordinate` in its
own process. Its workers are synthetic (coordinator_clients.py), except that real clients outlive it. `make coordinator`
takes about four minutes on a quiet machine.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import psutil

from prophet_mlfabric.client import CoordinatorClient
from prophet_mlfabric.settings import CoordinatorSettings
from prophet_scheduler.core.errors import UserError
from tools.coordinator_clients import TENANT, WorkerLoad, drive, flood
from tools.figures import percentile

TOKEN = "0123456789abcdef"
PROBES = 10
"""Number of workers whose waits are reported. They have their own process: the one that makes the load is busy."""
LOADS = ((PROBES, 100.0), (100, 100.0), (1000, 100.0), (1000, 300.0), (1000, 1000.0))
"""Workers, and updates per second of all of them."""
WIRE_WORKERS = 12
WIRE_PUSH_S = 0.01
WIRE_RATE_BYTES = 1.25e9
OUTLIVING = 4
"""Number of real clients whose coordinator is killed."""
OUTLIVING_BOUND_S = 0.5
PUSH_S = 0.01
"""Seconds that one of their updates takes."""
REQUESTS = 1_000_000
START_S = 20.0


class Coordinator:
    """A running `prophet coordinate`."""

    def __init__(self, process: subprocess.Popen[str], address: str, status: Path) -> None:
        self.process, self.address = process, address
        self.handle = psutil.Process(process.pid)
        self._status = status

    @property
    def cpu_s(self) -> float:
        times = self.handle.cpu_times()
        return float(times.user + times.system)

    def end(self) -> dict[str, int]:
        """Terminate it as an operator does, and return its counts."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(START_S)
        status = json.loads(self._status.read_text(encoding="utf-8"))
        return {**status["tenants"][TENANT], "refused_unheard": status["refused"]}


@contextlib.contextmanager
def coordinating(folder: Path, listen: str = "127.0.0.1:0", options: Sequence[str] = ()) -> Iterator[Coordinator]:
    """Run a coordinator within the context, once it listens. Raises UserError if it does not start."""
    tokens, status = folder / "tokens", folder / "status.json"
    tokens.write_text(f"{TENANT} {TOKEN}\n", encoding="utf-8")
    tokens.chmod(0o600)
    program = [sys.executable, "-u", "-m", "prophet_scheduler.cli.main", "coordinate", "--listen", listen]
    command = [*program, "--token-file", str(tokens), "--status", str(status), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            match = re.search(r"listening on (tcp://\S+)", line)
            if match is None:
                raise UserError(f"the coordinator did not start: {line.strip() or 'it said nothing'}")
            yield Coordinator(process, match[1], status)
        finally:
            process.kill()


@contextlib.contextmanager
def loaded(processes: int, options: Sequence[str] = ()) -> Iterator[tuple[Coordinator, Executor]]:
    """Run a coordinator, and separate processes for its load."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        coordinating(Path(folder), options=options) as coordinator,
        ProcessPoolExecutor(processes, spawn) as pool,
    ):
        yield coordinator, pool


def percentiles(what: str, values: Sequence[float]) -> dict[str, float]:
    """Return the median and the 99th percentile; nan without values."""
    return {f"{what}_p{share}_s": percentile(values, share) for share in (50, 99)}


def carried(workers: int, rate: float, seconds: float) -> dict[str, float]:
    """Measure `workers` with `rate` updates per second in all: PROBES workers' waits from Ask to start, and the share
    of a core that the coordinator uses. Nothing else is on the wire.
    """
    rest, share = workers - PROBES, rate / workers
    with loaded(2) as (coordinator, processes):
        probes = WorkerLoad(coordinator.address, TOKEN, 0, PROBES, seconds, rate=share * PROBES)
        others = WorkerLoad(coordinator.address, TOKEN, PROBES, rest, seconds + 2.0, rate=share * rest, nice=5)
        running = [(others, processes.submit(drive, others))] if rest else []
        for _, future in running:
            while coordinator.handle.num_fds() < rest and not future.done():
                time.sleep(0.1)
            time.sleep(1.0)
        running.append((probes, processes.submit(drive, probes)))
        began, cpu_s = time.monotonic(), coordinator.cpu_s
        waits = percentiles("wait", running[-1][1].result().waits_s)
        core = (coordinator.cpu_s - cpu_s) / (time.monotonic() - began)
        seen = [(load, future.result()) for load, future in running]
    return {
        "workers": workers,
        "asked_per_s": rate,
        "applied_per_s": sum(of.updates / load.seconds for load, of in seen),
        **waits,
        "core": core,
        "ungranted": sum(of.ungranted for _, of in seen),
    }


def handed(seconds: float) -> dict[str, float]:
    """Measure the wire's idle time between one update's end and the next one's start. Workers always have an update
    waiting, which takes 10 ms by the rates and really 7 to 12 ms.
    """
    size = int(WIRE_RATE_BYTES * WIRE_PUSH_S)
    with loaded(1, ["--delay-bound", str(2 * WIRE_WORKERS)]) as (coordinator, processes):
        address = coordinator.address
        load = WorkerLoad(address, TOKEN, 0, WIRE_WORKERS, seconds, 0.0, size, WIRE_PUSH_S, takes=(0.7, 1.2))
        seen = processes.submit(drive, load).result()
        counts = coordinator.end()
    shown = {"applied_per_s": seen.updates / seconds, "greatest_delay": counts["greatest_delay"]}
    return {"workers": WIRE_WORKERS, "push_s": WIRE_PUSH_S, **shown, **percentiles("idle", seen.idle_s)}


class Outliving:
    """Real clients, each in a thread that keeps asking."""

    def __init__(self, address: str) -> None:
        every = CoordinatorSettings(address, TENANT, TOKEN, OUTLIVING_BOUND_S)
        self.clients = [
            CoordinatorClient(replace(every, node=f"machine{worker}"), worker, watch_nic=False)
            for worker in range(OUTLIVING)
        ]
        self.pushed = 0
        self.longest_s = 0.0
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        for client in self.clients:
            client.wait_welcome(START_S)
        self._pool = ThreadPoolExecutor(OUTLIVING)
        self._working = [self._pool.submit(self._work, client) for client in self.clients]

    def _work(self, client: CoordinatorClient) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            asking = client.ask(1000, client.version, 1.0)
            asking.permission.result(START_S)
            time.sleep(PUSH_S)
            client.done(asking, 1000).result(START_S)
            with self._lock:
                self.pushed += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began - PUSH_S)

    def end(self) -> None:
        self._stopping.set()
        for working in self._working:
            working.result()
        for client in self.clients:
            client.close()


def outlived(seconds: float) -> dict[str, Any]:
    """Kill a coordinator in the middle of its work, and later start another at the same address.

    `longest_wait_s` is the longest that an update waited meanwhile, for its grant and for the answer to its Done.
    `counted_of` has the number of updates that the second coordinator counted, and of all that were pushed.
    """
    logger, warnings = logging.getLogger("prophet_scheduler"), BufferingHandler(sys.maxsize)
    warnings.setLevel(logging.WARNING)
    logger.addHandler(warnings)
    logger.propagate = False
    try:
        with tempfile.TemporaryDirectory() as folder:
            with coordinating(Path(folder)) as first:
                workers = Outliving(first.address)
                time.sleep(seconds)
                before, workers.longest_s = workers.pushed, 0.0
                first.process.kill()
                first.process.wait()
                time.sleep(seconds)
                away, longest = workers.pushed, workers.longest_s
            with coordinating(Path(folder), first.address.removeprefix("tcp://")) as second:
                until_s = time.monotonic() + START_S
                while any(client.away for client in workers.clients) and time.monotonic() < until_s:
                    time.sleep(0.05)
                time.sleep(seconds)
                workers.end()
                counted_of = [second.end()["version"], workers.pushed]
    finally:
        logger.removeHandler(warnings)
        logger.propagate = True
    return {
        **{
            "bound_s": OUTLIVING_BOUND_S,
            "away_s": seconds,
            "longest_wait_s": longest,
            "warnings": len(warnings.buffer),
        },
        **{"applied_before": before, "applied_away": away - before, "counted_of": counted_of},
    }


def flooded(requests: int, seconds: float) -> dict[str, float]:
    """Flood with requests as fast as two connections can, while ten workers continue at 100 updates per second.

    `before_bytes` and `after_bytes` are the coordinator's resident memory.
    """
    with loaded(2) as (coordinator, processes):
        settled = WorkerLoad(coordinator.address, TOKEN, 0, PROBES, 1.0, rate=100.0)
        processes.submit(drive, settled).result()
        before = coordinator.handle.memory_info().rss
        raining = processes.submit(flood, coordinator.address, TOKEN, 5000, requests // 2)
        waits: list[float] = []
        first, rains = 100, True
        while rains:
            rains = not raining.done()
            load = replace(settled, first=first, seconds=seconds)
            waits += processes.submit(drive, load).result().waits_s
            first += PROBES
        sent, took_s = raining.result()
        after = coordinator.handle.memory_info().rss
        counts = coordinator.end()
    refused = counts["refused"] + counts["refused_unheard"]
    shown = {"requests": sent, "seconds": took_s, "refused": refused, "before_bytes": before, "after_bytes": after}
    return {**shown, **percentiles("wait", waits)}


def measure(out: Path, results: Path, *, short: int = 0) -> dict[str, Any]:
    """Measure all; with `short` for two seconds each, as a smoke test. Raises UserError.

    `load` is the machine's load average of the last minute.
    """
    seconds = 2.0 if short else 15.0
    data = {
        "carried": [carried(workers, rate, seconds) for workers, rate in LOADS],
        "handed": handed(seconds),
        "outlived": outlived(seconds / 3),
        "flooded": flooded(20_000 if short else REQUESTS, 1.0 if short else 5.0),
    }
    return {**data, "load": os.getloadavg()[0]}
