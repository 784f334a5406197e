"""Transfers of a finished run, from the hook's events or BytePS's trace: what the figures are drawn from.

Rule of this file: events and marks in, plain values out. Times are seconds on the run's steady clock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet.core.events import UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet.lab.jobs.record import Mark, WorkerRecord
from prophet.lab.runs import BYTEPS_TRACE, CellRuns

WORKER = "worker0"
"""The figures show one worker; the others do the same at the same time."""


@dataclass(frozen=True)
class Transfer:
    """One partition in one direction: ready at `added_s`, on the wire from `start_s`, done at `finish_s`."""

    gradient: int
    partition: int
    size_bytes: int
    queue: QueueKind
    added_s: float
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class RecordedRun:
    """A worker's transfers and its iterations' marks."""

    policy: str
    transfers: tuple[Transfer, ...]
    marks: tuple[Mark, ...]

    def iterations(self, first: int, count: int) -> tuple[float, float]:
        """From the start of backward of iteration `first` to that of `first + count`."""
        return self.marks[first].backward, self.marks[first + count].backward


def pair_events(events: NDArray[Any]) -> tuple[Transfer, ...]:
    """Matches the events of each task (EVENT_DTYPE, in order of time); what never finished is left out."""
    open_tasks: dict[tuple[int, int, int], list[float]] = {}
    transfers = []
    columns = (events[name].tolist() for name in ("time_s", "gradient", "partition", "bytes", "queue", "kind", "gap"))
    for time_s, gradient, partition, size, queue, kind, gap in zip(*columns, strict=True):
        if gap:
            open_tasks.clear()
        if gradient & UNPROFILED_GRADIENT:
            continue
        key = (gradient, partition, queue)
        if kind == EventKind.ADD:
            open_tasks[key] = [time_s]
        elif key in open_tasks and kind == EventKind.START:
            open_tasks[key].append(time_s)
        elif key in open_tasks:
            times = open_tasks.pop(key)
            if len(times) == 2:
                added_s, start_s = times
                transfers.append(Transfer(gradient, partition, size, QueueKind(queue), added_s, start_s, time_s))
    return tuple(transfers)


def read_byteps_trace(path: Path, worker: WorkerRecord) -> tuple[Transfer, ...]:
    """Transfers from BytePS's own trace, whose times are microseconds of the wall clock.

    `worker` is the result of the worker that wrote it: the names of its parameters in order, and how far
    the wall clock was ahead of the steady one.
    """
    indices = {f"Comm.byteps.Gradient.{name}": index for index, name in enumerate(worker.parameters)}
    events = [e for e in json.loads(path.read_text(encoding="utf-8"))["traceEvents"] if e["pid"] in indices]
    # The whole of an operation, which is on record without a stage, begins when its gradient is there.
    generated: dict[str, list[float]] = {}
    for event in sorted(events, key=lambda e: float(e["ts"])):
        if event["name"] == event["pid"]:
            generated.setdefault(event["pid"], []).append(float(event["ts"]))
    transfers = []
    for event in events:
        stage = event["name"].removeprefix(event["pid"]).lstrip(".")
        if stage not in QueueKind.__members__:
            continue
        queue, ts = QueueKind[stage], float(event["ts"])
        earlier = [time for time in generated.get(event["pid"], []) if time <= ts]
        added = earlier[-1] if queue is QueueKind.PUSH and earlier else ts
        start_s, added_s = (time / 1e6 - worker.wall_minus_steady_s for time in (ts, added))
        # It records no sizes.
        transfers.append(
            Transfer(
                indices[event["pid"]],
                int(event["tid"]) & 0xFFFF,
                0,
                queue,
                added_s,
                start_s,
                start_s + event["dur"] / 1e6,
            )
        )
    return tuple(transfers)


def one_run_each(cell: CellRuns) -> list[RecordedRun]:
    """A good run of each policy that left a record of its transfers: Prophet's events, or BytePS's trace."""
    recorded = []
    for name, runs in cell.runs.items():
        candidates = [cell.recordings[name]] if name in cell.recordings else runs
        run = next((run for run in candidates if run.error is None), None)
        if run is None:
            continue
        worker = run.workers[0]
        events = run.folder / f"{WORKER}.events.npy"
        trace = run.folder / f"{WORKER}.trace" / BYTEPS_TRACE
        if events.exists():
            recorded.append(RecordedRun(name, pair_events(np.load(events)), tuple(worker.marks)))
        elif trace.exists():
            recorded.append(RecordedRun(name, read_byteps_trace(trace, worker), tuple(worker.marks)))
    return recorded
