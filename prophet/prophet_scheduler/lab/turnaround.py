"""Waiting and transfer times of each gradient or block, as in the paper's Fig. 11.

Rule of this file: arithmetic on the transfers of a finished run. Times are seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.records import GradientTimes
from prophet_scheduler.lab.transfers import RecordedRun


@dataclass(frozen=True)
class Turnaround:
    """One gradient in one iteration: seconds after backward began until it was generated, first sent, and back.

    Gradients cut into blocks count by blocks; a block is generated when its last part is.
    """

    gradient: int
    size_bytes: int
    generated_s: float
    starts_s: float
    back_s: float

    @property
    def wait_s(self) -> float:
        """Seconds until the network gets its first partition, which may then wait in the network's queue (BytePS)."""
        return self.starts_s - self.generated_s

    @property
    def total_s(self) -> float:
        """Seconds from generation until the sum of all workers is there."""
        return self.back_s - self.generated_s


def turnarounds(run: RecordedRun, warmup: int) -> list[Turnaround]:
    """Return each gradient's medians over the iterations after `warmup` with a known end, by gradient.

    If the cut changed meanwhile, these are the blocks of the last iteration, over all iterations that had them. Empty
    if the run has no such iteration, as in a short recording.
    """
    by_block: dict[tuple[int, int], list[Turnaround]] = {}
    last: set[tuple[int, int]] = set()
    backward_s = [mark.backward for mark in run.marks]
    # An all-reduce is recorded as a push alone, and brings the sum itself.
    brought_by = QueueKind.PUSH if run.all_reduce else QueueKind.PULL
    by_iteration: dict[int, list[Transfer]] = {}
    for transfer in run.transfers:
        # A pull can end in the next forward pass, which belongs to the same iteration here.
        by_iteration.setdefault(bisect_right(backward_s, transfer.added_s) - 1, []).append(transfer)
    for iteration in range(max(0, min(warmup, len(run.marks) - 2)), len(run.marks) - 1):
        ways = list(_of_iteration(by_iteration.get(iteration, ()), backward_s[iteration], brought_by))
        if ways:
            last = {(way.gradient, way.size_bytes) for way in ways}
        for way in ways:
            by_block.setdefault((way.gradient, way.size_bytes), []).append(way)
    return [_middle(by_block[block]) for block in sorted(last)]


def mean_s(times: Sequence[Turnaround]) -> GradientTimes:
    """Return the means over the gradients of `wait_s` and `total_s`, for results.json."""
    return GradientTimes(
        wait_s=float(np.mean([time.wait_s for time in times])),
        total_s=float(np.mean([time.total_s for time in times])),
    )


def _of_iteration(transfers: Iterable[Transfer], began: float, brought_by: QueueKind) -> Iterable[Turnaround]:
    sent: dict[int, list[Transfer]] = {}
    received: dict[int, list[Transfer]] = {}
    for transfer in transfers:
        if transfer.queue is QueueKind.PUSH:
            sent.setdefault(transfer.gradient, []).append(transfer)
        if transfer.queue is brought_by:
            received.setdefault(transfer.gradient, []).append(transfer)
    for gradient, pushes in sent.items():
        if gradient in received:
            yield Turnaround(
                gradient,
                sum(t.size_bytes for t in pushes),
                max(t.added_s for t in pushes) - began,
                min(t.start_s for t in pushes) - began,
                max(t.finish_s for t in received[gradient]) - began,
            )


def _middle(several: Sequence[Turnaround]) -> Turnaround:
    times_s = np.median([(way.generated_s, way.starts_s, way.back_s) for way in several], axis=0)
    return Turnaround(several[0].gradient, several[0].size_bytes, *times_s.tolist())
