"""Transfers of a finished run for the figures, from the hook's events or the engine's own trace.

Rule of this file: events and marks in, plain values out. Times are seconds on the run's steady clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.core.events import UNPROFILED_GRADIENT, EventKind, QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.jobs.record import Mark
from prophet_scheduler.lab.runs import EVENTS_FILE, CellRuns

logger = logging.getLogger("prophet_scheduler")
WORKER = "worker0"
"""Worker in the figures; the others do the same at the same time."""


@dataclass(frozen=True)
class RecordedRun:
    """A worker's transfers and its iterations' marks. `arena`: ids are places in the arena, not numbers of gradients.

    `all_reduce`: only pushes are recorded, and a push is its own pull.
    """

    policy: str
    transfers: tuple[Transfer, ...]
    marks: tuple[Mark, ...]
    arena: bool = False
    all_reduce: bool = False

    def iterations(self, first: int, count: int) -> tuple[float, float]:
        """Return the starts of backward of iterations `first` and `first + count`."""
        return self.marks[first].backward, self.marks[first + count].backward


def pair_events(events: NDArray[Any]) -> tuple[Transfer, ...]:
    """Match the events of each task (EVENT_DTYPE, in order of time), leaving out unfinished tasks."""
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


def one_run_each(cell: CellRuns) -> list[RecordedRun]:
    """Return a good run of each policy with recorded transfers: Prophet's events, or the engine's own trace."""
    recorded = []
    engines = {policy.name: policy.engine for policy in cell.cell.policies}
    for name, runs in cell.runs.items():
        candidates = [cell.recordings[name]] if name in cell.recordings else runs
        run = next((run for run in candidates if run.error is None), None)
        if run is None:
            continue
        worker = run.workers[0]
        events = _events_of(run.folder)
        trace = engines[name].trace
        try:
            if events is not None:
                arena = bool(run.statuses) and run.statuses[0].arena
                transfers = pair_events(load_events(events))
                all_reduce = not engines[name].topology.through_servers
                recorded.append(RecordedRun(name, transfers, tuple(worker.marks), arena, all_reduce))
            elif trace is not None and (file := run.folder / f"{WORKER}.trace" / trace.file).exists():
                recorded.append(RecordedRun(name, trace.read(file, worker), tuple(worker.marks)))
        except UserError as error:  # the measured times remain
            logger.warning("Prophet draws nothing of %s: %s", name, error)
    return recorded


def _events_of(folder: Path) -> Path | None:
    """Return the file of the recorded worker's events, which had another name in earlier releases."""
    paths = (folder / f"{WORKER}.{name}" for name in (EVENTS_FILE, "events.npy"))
    return next((path for path in paths if path.exists()), None)
