"""Transfers of a finished run for the figures, and each gradient's round trip, as in the paper's Fig. 11.

Rule of this file: events and marks in, plain values out. Times are seconds on the run's monotonic clock.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import load_events
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.jobs.record import Mark
from prophet_scheduler.lab.records import GradientTimes
from prophet_scheduler.lab.runs import EVENTS_FILE, CellRuns
from prophet_scheduler.watch.meter import Meter

logger = logging.getLogger("prophet_scheduler")
WORKER = "worker0"
"""Worker shown in the figures; the others do much the same at the same time."""


@dataclass(frozen=True)
class RecordedRun:
    """A worker's transfers and iteration marks. `arena`: ids are positions in the arena, not gradient numbers.
    `all_reduce`: only pushes are recorded, and a push is also its own pull.
    """

    policy: str
    transfers: tuple[Transfer, ...]
    marks: tuple[Mark, ...]
    arena: bool = False
    all_reduce: bool = False

    def iterations(self, first: int, count: int) -> tuple[float, float]:
        """Return when backward starts in iterations `first` and `first + count`."""
        return self.marks[first].backward, self.marks[first + count].backward


def pair_events(events: NDArray[Any]) -> tuple[Transfer, ...]:
    """Pair the events of each task (EVENT_DTYPE, by time) into transfers, leaving out unfinished tasks."""
    return tuple(
        Transfer(gradient, partition, size, QueueKind(queue), *times_s)
        for gradient, partition, queue, size, *times_s in Meter().pair(events).tolist()
    )


def one_run_each(cell: CellRuns) -> list[RecordedRun]:
    """Return one successful run of each policy with recorded transfers: Prophet's events or the engine's own trace."""
    recorded = []
    engines = {policy.name: policy.engine for policy in cell.cell.policies}
    for name, runs in cell.runs.items():
        candidates = [cell.recordings[name]] if name in cell.recordings else runs
        run = next((run for run in candidates if run.error is None), None)
        if run is None:
            continue
        worker, trace = run.workers[0], engines[name].trace
        events = run.folder / f"{WORKER}.{EVENTS_FILE}"
        try:
            if events.exists():
                arena = bool(run.statuses) and run.statuses[0].arena
                transfers = pair_events(load_events(events))
                all_reduce = not engines[name].topology.through_servers
                recorded.append(RecordedRun(name, transfers, tuple(worker.marks), arena, all_reduce))
            elif trace is not None and (file := run.folder / f"{WORKER}.trace" / trace.file).exists():
                recorded.append(RecordedRun(name, trace.read(file, worker), tuple(worker.marks)))
        except UserError as error:  # the measured times remain
            logger.warning("Prophet cannot draw %s: %s", name, error)
    return recorded


@dataclass(frozen=True)
class Turnaround:
    """One gradient in one iteration: seconds from the start of backward until it was generated, first sent, and back.

    Where gradients travel in blocks, this is one block, which is generated when its last part is.
    """

    gradient: int
    size_bytes: int
    generated_s: float
    starts_s: float
    back_s: float

    @property
    def wait_s(self) -> float:
        """Seconds from generation to sending of the first partition, which may then wait in BytePS's own queue."""
        return self.starts_s - self.generated_s

    @property
    def total_s(self) -> float:
        """Seconds from generation until the sum of all workers has arrived."""
        return self.back_s - self.generated_s


def turnarounds(run: RecordedRun, warmup: int) -> list[Turnaround]:
    """Return each gradient's medians, by gradient, over the iterations after `warmup` whose end is known.

    If the cut changed, these are the blocks of the last iteration, over all iterations that had the same blocks.
    """
    by_block: dict[tuple[int, int], list[Turnaround]] = {}
    last: set[tuple[int, int]] = set()
    backward_s = [mark.backward for mark in run.marks]
    by_iteration: dict[int, list[Transfer]] = {}
    for transfer in run.transfers:
        # A pull may finish during the next forward pass, which counts as part of the same iteration here.
        by_iteration.setdefault(bisect_right(backward_s, transfer.added_s) - 1, []).append(transfer)
    for iteration in range(max(0, min(warmup, len(run.marks) - 2)), len(run.marks) - 1):
        ways = list(_of_iteration(by_iteration.get(iteration, ()), backward_s[iteration], run.all_reduce))
        last = {(way.gradient, way.size_bytes) for way in ways} or last
        for way in ways:
            by_block.setdefault((way.gradient, way.size_bytes), []).append(way)
    middles = []
    for (gradient, size), several in sorted((block, by_block[block]) for block in last):
        times_s = np.median([(way.generated_s, way.starts_s, way.back_s) for way in several], axis=0)
        middles.append(Turnaround(gradient, size, *times_s.tolist()))
    return middles


def mean_s(times: Sequence[Turnaround]) -> GradientTimes:
    """Return the means of `wait_s` and `total_s` over the gradients, for results.json."""
    return GradientTimes(wait_s=fmean(time.wait_s for time in times), total_s=fmean(time.total_s for time in times))


def _of_iteration(transfers: Iterable[Transfer], began: float, all_reduce: bool) -> Iterable[Turnaround]:
    ways: dict[int, tuple[list[Transfer], list[Transfer]]] = {}
    for transfer in transfers:
        ways.setdefault(transfer.gradient, ([], []))[transfer.queue].append(transfer)
    for gradient, (pushes, pulls) in ways.items():
        back = pushes if all_reduce else pulls
        if pushes and back:
            yield Turnaround(
                gradient,
                sum(t.size_bytes for t in pushes),
                max(t.added_s for t in pushes) - began,
                min(t.start_s for t in pushes) - began,
                max(t.finish_s for t in back) - began,
            )
