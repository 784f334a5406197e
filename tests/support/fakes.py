"""A testbed without machines, for the runner: scripted processes on a virtual clock."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.status import AgentStatus, HookStatus
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.jobs.record import Mark, WorkerRecord, progress_path
from prophet_scheduler.lab.runner import Edges


class Clock:
    """Time that passes only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    @property
    def edges(self) -> Edges:
        return Edges(lambda: self.now_s, self.sleep)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


@dataclass
class Script:
    """Script of a process: it runs `iterations` of `iteration_s`, writes its files and ends with `code`.

    With a `code` of None it never ends. `files` are contents by suffix of the worker's record.
    """

    iterations: int = 0
    iteration_s: float = 1.0
    code: int | None = 0
    log: str = ""
    files: Mapping[str, Any] = field(default_factory=dict)


class FakeProcess:
    def __init__(self, script: Script, out: Path | None, clock: Clock) -> None:
        self._script = script
        self._out = out
        self._clock = clock
        self._began = clock.now_s
        self._written = 0
        self.code: int | None = None
        """Status of the signal that ended it; None if none did."""

    def poll(self) -> int | None:
        if self.code is not None:
            return self.code
        script, passed = self._script, self._clock.now_s - self._began
        finished = min(script.iterations, int(passed / script.iteration_s + 1e-9))
        if self._out is not None and finished > self._written:
            progress_path(self._out).write_text("1.0\n" * finished)
            self._written = finished
        if script.code is None or passed < script.iterations * script.iteration_s:
            return None
        if self._out is not None:
            for suffix, content in script.files.items():
                path = self._out.with_suffix(f".{suffix}")
                if isinstance(content, np.ndarray):
                    np.save(path, content)
                else:
                    path.write_text(json.dumps(content))
        return script.code


class FakeHost:
    """Host that records all calls; `script(node, env)` is the script of a process."""

    def __init__(self, clock: Clock, script: Callable[[str, Mapping[str, str]], Script]) -> None:
        self._clock = clock
        self._script = script
        self.started: list[tuple[str, Sequence[str], Mapping[str, str]]] = []
        self.bandwidths: list[tuple[float, str, float | None]] = []
        self.traffic: list[tuple[float, str, float | None]] = []
        self.broken: list[tuple[float, str, object]] = []
        """Links switched off (False) or on (True), and signals."""
        self._running: dict[str, FakeProcess] = {}
        self.breaks_at: float | None = None
        self.terminated = 0
        self.closed = 0

    @contextmanager
    def opened(self, cell: Cell) -> Any:
        try:
            yield self
        finally:
            self.closed += 1

    def address(self, name: str) -> str:
        return f"10.0.0.{len(name)}"

    def interface(self, name: str) -> str:
        return f"{name}-eth"

    def popen(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path) -> FakeProcess:
        script = self._script(name, env)
        log.write_text(script.log)
        self.started.append((name, argv, env))
        out = Path(argv[argv.index("--out") + 1]) if "--out" in argv else None
        self._running[name] = FakeProcess(script, out, self._clock)
        return self._running[name]

    def set_bandwidth(self, name: str, bits_per_s: float | None) -> None:
        self.bandwidths.append((self._clock.now_s, name, bits_per_s))

    def set_traffic(self, name: str, bits_per_s: float | None) -> None:
        self.traffic.append((self._clock.now_s, name, bits_per_s))

    def set_link(self, name: str, *, passes: bool) -> None:
        self.broken.append((self._clock.now_s, name, passes))

    def send_signal(self, name: str, number: signal.Signals) -> None:
        self.broken.append((self._clock.now_s, name, number))
        if number is signal.SIGKILL:
            self._running[name].code = -number

    def check(self) -> Mapping[str, float]:
        return {"worker0 up": 249e6}

    def check_round_trips(self) -> Mapping[str, float]:
        return {"worker0": 0.0101}

    def fault(self) -> str | None:
        broken = self.breaks_at is not None and self._clock.now_s >= self.breaks_at
        return "the relay of worker0's link ended with status 1: it said nothing" if broken else None

    def terminate_all(self) -> None:
        self.terminated += 1


class FakeListener:
    def __init__(self) -> None:
        self.heard: list[object] = []
        self.most = 0

    def run_starts(self, cell: Cell, policy: Contender, repeat: int) -> None:
        self.heard.append(f"{policy.name} {repeat}")

    def iterations(self, done: int) -> None:
        self.most = max(self.most, done)

    def run_ends(self, error: str | None) -> None:
        self.heard.append(error)


def worker_record(iteration_s: Sequence[float], **extra: Any) -> WorkerRecord:
    """Return `worker_result` as the runner has it."""
    return TypeAdapter(WorkerRecord).validate_python(worker_result(iteration_s, **extra))


def agent_status(**changes: Any) -> AgentStatus:
    """Return `status` as the runner has it."""
    return TypeAdapter(AgentStatus).validate_python(status(**changes))


def worker_result(iteration_s: Sequence[float], **extra: Any) -> dict[str, Any]:
    """Return a worker's result whose iterations start one after another; backward begins after a third of each."""
    starts = np.concatenate([[100.0], 100.0 + np.cumsum(iteration_s)])
    lengths = [*iteration_s, iteration_s[-1]]
    marks = [
        {"start": s, "backward": s + length / 3, "backward_end": s + 0.9 * length}
        for s, length in zip(starts.tolist(), lengths, strict=True)
    ]
    return {
        "iteration_s": list(iteration_s),
        "marks": marks,
        "start_s": 4.0,
        "weights_sha256": "abc",
        "rank": 0,
        **extra,
    }


def status(**changes: Any) -> dict[str, Any]:
    """Return the status that Prophet writes at the end of a worker."""
    return {
        "policy": "prophet",
        "stepped_aside": "",
        "plans": 2,
        "agent_cpu_s": 0.05,
        "partition_bytes": 524288,
        "push_credit": 1_000_000,
        "network": {"bandwidth": 31e6, "overhead_s": 0.001, "ack_delay_s": 0.002},
        "hook": dataclasses.asdict(HookStatus(True, "", 10, 0, 0, 0, 0)),
        **changes,
    }


def recorded_events(marks: Sequence[Mark], gradients: int = 3) -> NDArray[Any]:
    """Return events: a broadcast, then in each iteration the push and pull of one gradient after another."""
    rows = [(marks[0].start, 0x80000001, 4, 0, QueueKind.PUSH, kind, 0) for kind in EventKind]
    for mark in marks:
        time_s = mark.backward
        for gradient in reversed(range(gradients)):
            for queue in QueueKind:
                for kind in EventKind:
                    time_s += 0.01
                    rows.append((time_s, gradient, 1000, 0, queue, kind, 0))
    return np.array(rows, EVENT_DTYPE)
