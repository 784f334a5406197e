"""Transfers of a finished run, from the hook's events: what the gantt and the trace are drawn from.

Rule of this file: events and marks in, plain values out. Times are seconds on the run's steady clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from prophet.experiment.runner import CellRuns
from prophet.model import UNPROFILED_GRADIENT, EventKind, QueueKind

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
    """A worker's transfers and its iterations' marks (`start`, `backward`, `backward_end`)."""

    policy: str
    transfers: tuple[Transfer, ...]
    marks: tuple[Mapping[str, float], ...]

    def iterations(self, first: int, count: int) -> tuple[float, float]:
        """From the start of backward of iteration `first` to that of `first + count`."""
        return self.marks[first]["backward"], self.marks[first + count]["backward"]


def pair_events(events: np.ndarray) -> tuple[Transfer, ...]:
    """Matches the events of each task (EVENT_DTYPE, in order of time); what never finished is left out."""
    open_tasks: dict[tuple[int, int, int], list[float]] = {}
    transfers = []
    columns = (events[name].tolist() for name in ("time_s", "gradient", "partition", "bytes", "queue", "kind"))
    for time_s, gradient, partition, size, queue, kind in zip(*columns, strict=True):
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


def one_run_each(cell: CellRuns) -> list[RecordedRun]:
    """The first good run of each policy that kept records; stock BytePS keeps none."""
    recorded = []
    for name, runs in cell.runs.items():
        run = next((run for run in runs if run.error is None), None)
        if run is None:
            continue
        events = run.folder / f"{WORKER}.events.npy"
        if events.exists():
            marks: list[dict[str, Any]] = run.workers[0]["marks"]
            recorded.append(RecordedRun(name, pair_events(np.load(events)), tuple(marks)))
    return recorded
