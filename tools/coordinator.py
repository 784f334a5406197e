"""Cost of MLfabric's coordinator.

Rule of this file: the loads on a real coordinator, and its measurements. The coordinator is `prophet coordinate` in its
own process. Its workers are synthetic, many in one process: they use the real protocol, each on its own connection
(prophet_mlfabric/messages.py), but an update is only a configured wait. Times are seconds of the monotonic clock.
`make coordinator` takes about two minutes on a quiet machine. Tests of the plugin kill and flood the coordinator.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from prophet_mlfabric.messages import (
    MOST_ANSWER_BYTES,
    Applied,
    Ask,
    Challenge,
    Done,
    Grant,
    Hello,
    Welcome,
    decode_answer,
    framed,
    prove,
    take_frames,
)
from prophet_mlfabric.studies.agenda import Agenda
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.hub import Hub, Owner, lives_or_ends
from tools.figures import percentile

TOKEN = "0123456789abcdef"
PROBES = 10
"""Number of workers whose waits are reported. They have their own process: the one that makes the load is busy."""
LOADS = ((PROBES, 100.0), (100, 100.0), (1000, 100.0), (1000, 300.0), (1000, 1000.0))
"""Workers, and updates per second of all of them."""
WIRE_WORKERS = 12
WIRE_PUSH_S = 0.01
WIRE_RATE_BYTES = 1.25e9
END_S = 20.0
"""Maximum seconds until the coordinator has ended."""
TENANT = "load"
MOST_WAITING = 50
"""Maximum workers that wait to be admitted at once: a coordinator accepts a limited number of strangers."""
WELCOME_S = 60.0
"""Maximum seconds until all workers are admitted."""


@dataclass(frozen=True)
class WorkerLoad:
    """Load from one process of workers. Sizes in bytes, times in seconds, `rate` in updates per second of all workers.

    With `rate` 0 a worker asks as soon as its last update is applied. An update takes `push_s` times a factor drawn
    uniformly from the range `takes`.
    """

    address: str
    first: int
    workers: int
    seconds: float
    rate: float = 0.0
    size_bytes: int = 1
    push_s: float = 0.0
    takes: tuple[float, float] = (1.0, 1.0)
    nice: int = 0


@dataclass
class Seen:
    """Observations of a process's workers, in seconds: the time from each Ask to its start, and the wire's idle time
    between the end of an update and the start of the next.
    """

    waits_s: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    updates: int = 0


class _Worker:
    def __init__(self, load: WorkerLoad, number: int, process: _Process) -> None:
        place = urlsplit(load.address)
        own = socket.create_connection((place.hostname or "", place.port or 0), WELCOME_S)
        lives_or_ends(own)
        owner = Owner(2 * MOST_ANSWER_BYTES, received=lambda connection: process.received(self))
        self.connection = process.hub.adopt(own, owner)
        self.hello = Hello(tenant=TENANT, worker=number, incarnation=os.getpid(), node=f"machine{number}")
        self.welcomed = False
        self.asks = 0
        self.version = 0
        self.asked_s = 0.0
        self.connection.send(framed(self.hello))


def drive(load: WorkerLoad) -> Seen:
    """Run the workers for `load.seconds` once all are admitted. Raises UserError if that takes more than WELCOME_S."""
    os.nice(load.nice)
    with contextlib.closing(Hub(load.workers, math.inf)) as hub:
        return _Process(load, hub).run()


class _Process:
    def __init__(self, load: WorkerLoad, hub: Hub) -> None:
        self.hub = hub
        self._load = load
        self._seen = Seen()
        self._random = np.random.default_rng(load.first)
        self._workers: list[_Worker] = []
        self._agenda = Agenda()
        self._idle_since_s: float | None = None

    def run(self) -> Seen:
        until_s, waiting = time.monotonic() + WELCOME_S, 0
        while (more := len(self._workers) < self._load.workers) or waiting:
            if more and waiting < MOST_WAITING:
                self._workers.append(_Worker(self._load, self._load.first + len(self._workers), self))
            self._once()
            waiting = sum(not worker.welcomed for worker in self._workers)
            if time.monotonic() > until_s:
                raise UserError(f"only some of {self._load.workers} workers were welcome within {WELCOME_S:g} s")
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            rate = self._load.rate
            self._agenda.at(now + (place / rate if rate else 0.0), partial(self._ask, worker))
        while time.monotonic() < now + self._load.seconds:
            self._once()
        return self._seen

    def _once(self) -> None:
        """Wait for the next event or message, and handle it."""
        self.hub.turn(min(self._agenda.next_s, time.monotonic() + 0.1))
        while self._agenda.next_s <= time.monotonic():
            _, action = self._agenda.take()
            action()

    def received(self, worker: _Worker) -> None:
        """Handle messages to a worker."""
        for data in take_frames(worker.connection.received, MOST_ANSWER_BYTES):
            now, load, answer = time.monotonic(), self._load, decode_answer(data)
            if isinstance(answer, Challenge):
                proof = prove(TOKEN, answer.nonce, worker.hello)
                worker.connection.send(framed(worker.hello.model_copy(update={"proof": proof})))
            elif isinstance(answer, Welcome):
                worker.welcomed, worker.version = True, answer.version
            elif isinstance(answer, Grant):
                self._seen.waits_s.append(now + answer.start_s - worker.asked_s)
                if self._idle_since_s is not None:
                    self._seen.idle_s.append(max(0.0, now + answer.start_s - self._idle_since_s))
                    self._idle_since_s = None
                takes_s = answer.start_s + load.push_s * float(self._random.uniform(*load.takes))
                self._agenda.at(now + takes_s, partial(self._pushed, worker))
            elif isinstance(answer, Applied):
                self._seen.updates += 1
                worker.version = answer.version
                next_s = now if not load.rate else max(now, worker.asked_s + load.workers / load.rate)
                self._agenda.at(next_s, partial(self._ask, worker))

    def _ask(self, worker: _Worker) -> None:
        """Ask to send the next update; the last one has been applied."""
        worker.asked_s = time.monotonic()
        worker.asks += 1
        ask = Ask(update=worker.asks, size_bytes=self._load.size_bytes, version=worker.version)
        worker.connection.send(framed(ask))

    def _pushed(self, worker: _Worker) -> None:
        self._idle_since_s = time.monotonic()
        done = Done(update=worker.asks, size_bytes=self._load.size_bytes, version=worker.version)
        worker.connection.send(framed(done))


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
        self.process.wait(END_S)
        counts: dict[str, int] = json.loads(self._status.read_text(encoding="utf-8"))["tenants"][TENANT]
        return counts


@contextlib.contextmanager
def coordinating(folder: Path, options: Sequence[str] = ()) -> Iterator[Coordinator]:
    """Run a coordinator within the context, once it listens. Raises UserError if it does not start."""
    tokens, status = folder / "tokens", folder / "status.json"
    tokens.write_text(f"{TENANT} {TOKEN}\n", encoding="utf-8")
    tokens.chmod(0o600)
    program = [sys.executable, "-u", "-m", "prophet_scheduler.cli.main", "coordinate", "--listen", "127.0.0.1:0"]
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
        probes = WorkerLoad(coordinator.address, 0, PROBES, seconds, rate=share * PROBES)
        others = WorkerLoad(coordinator.address, PROBES, rest, seconds + 2.0, rate=share * rest, nice=5)
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
        ungranted = coordinator.end()["ungranted"]
    return {
        "workers": workers,
        "asked_per_s": rate,
        "applied_per_s": sum(of.updates / load.seconds for load, of in seen),
        **waits,
        "core": core,
        "ungranted": ungranted,
    }


def handed(seconds: float) -> dict[str, float]:
    """Measure the wire's idle time between one update's end and the next one's start. Workers always have an update
    waiting, which takes 10 ms by the rates and really 7 to 12 ms.
    """
    size = int(WIRE_RATE_BYTES * WIRE_PUSH_S)
    with loaded(1, ["--delay-bound", str(2 * WIRE_WORKERS)]) as (coordinator, processes):
        address = coordinator.address
        load = WorkerLoad(address, 0, WIRE_WORKERS, seconds, 0.0, size, WIRE_PUSH_S, takes=(0.7, 1.2))
        seen = processes.submit(drive, load).result()
        counts = coordinator.end()
    shown = {"applied_per_s": seen.updates / seconds, "greatest_delay": counts["greatest_delay"]}
    return {"workers": WIRE_WORKERS, "push_s": WIRE_PUSH_S, **shown, **percentiles("idle", seen.idle_s)}


def measure(out: Path, results: Path, *, seconds: float = 15.0) -> dict[str, Any]:
    """Measure each load for `seconds`. Raises UserError.

    `load` is the machine's load average of the last minute.
    """
    found = {"carried": [carried(workers, rate, seconds) for workers, rate in LOADS], "handed": handed(seconds)}
    return {**found, "load": os.getloadavg()[0]}
