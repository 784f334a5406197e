"""The network as an engine of collectives sees it: the time that each operation adds, not its latency.

Rule of this file: statistics over events; no clock, thread or file. Times are in seconds, sizes in bytes.

Collectives of one group take turns, and a few are issued ahead so that one starts when another ends. So an operation's
latency says little, because it waits for earlier ones. But while something is always in flight, the time between two
ends is the cost of an operation, E(s) = overhead + s / bandwidth (paper, Eq. 10). It includes submitting the operation
and waking threads.

Operations in flight together send their first parts before the first of them sends its last part. So they end in
bursts: one seems to cost as much as all, and the others nothing. A stretch therefore holds all operations in flight
when one ends, until the last of them has ended. Most operations issued meanwhile send their parts after these. But a
large operation next to small ones has sent half of its bytes when the small ones end: they seem to cost as much as it
does, and it seems almost free. So stretches without a pause between them are joined into observations of at least a few
operations, until no such large one is in flight. Errors are relative to the line's value: relative to the observed
time, operations that seem cheap would count most.

An operation needs several round trips between ranks. If these take long, the operations in flight may be too few to
keep the wire busy. So before the job's first iteration, a nearly empty operation is timed on an idle wire (`Probe`).
Its time is the delay L. Let n operations of cost E always be in flight, each issued when another ends. Then n of them
take n E if the wire is busy, and L + E if it waits. Their time T is the longer of the two, and somewhat more where
these are equal, since operations also wait together. E follows from T. After a pause, n operations start together, and
it is unknown how much of the delay passes while others send: they cost at least T - L and at most T.

Operations in flight together may also wait together, first for the delay and then for the wire. So even if there are
enough of them to hide the delay, blocks may take longer to return than they cost. The next blocks are planned by this
pace (`pace_s`): otherwise an urgent block with a turn at its generation would be late.

A rank that waits for a slower one sees operations take longer than they do. Such times lie above the line and are left
out, unless they are the majority.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prophet_scheduler.core.events import EventKind, QueueKind
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.learn.bandwidth import WINDOW_S, NicSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER = 2
"""Minimum operations in a stretch, unless a pause follows."""
JOINED = 4
"""Minimum operations in an observation, if enough follow one another without a pause."""
LARGER = 32
"""An observation does not end while an operation this many times as large as the last finished one is in flight."""
UNDER_WAY = 16
"""Maximum number of other operations in flight when one ends."""
KEPT = 400
"""Number of stretches kept."""
LEAST = 8
"""Minimum stretches for an estimate; this many of the newest count regardless of age."""
ALIKE = 0.25
"""Minimum scatter of sizes, as a share of their mean, for an estimate of the overhead."""
LIKELY_OVERHEAD_S, LIKELY_ERROR_S, FREEDOM = 0.3e-3, 0.5e-3, 3
"""Overhead of an operation before any is measured: location, scale and degrees of freedom of Student's t."""
FITS = 12
"""Number of fits of the line; each gives outliers less weight."""
EXACT = 0.01
"""Relative deviation below which a point lies on the line."""
WAKING_S = 2e-3
"""Part of a delay that may be threads waking up, on all ranks: after a pause it counts as work."""
LEAST_COST = 0.02
"""Minimum share of a stretch's time that is the cost of its operations, since the delay is not known exactly."""
DELAY_ERROR = 0.1
"""Relative variation of the delay from one operation to the next."""
TOGETHER_BY = 6
"""Exponent of the soft maximum of two times: if they are equal, it is 2^(1/6) of either, as with gloo and 5 ms."""
NEWTON = 6
"""Newton steps to solve for the cost of an operation."""
LIKE_THESE = 0.1
"""Maximum relative difference in bytes between operations of about the same size."""


class _Operation(NamedTuple):
    """An operation, in seconds of the job's clock and bytes; `before_s` is the end of the previous one."""

    start_s: float
    before_s: float
    end_s: float
    size_bytes: int


class SerialMonitor:
    """Fit of E(s) to operations that take turns. `probe`: the time of a single operation, if measured."""

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe
        self._started: dict[int, float] = {}
        self._ended_s = -np.inf
        self._stretch: list[_Operation] = []
        self._others: set[int] = set()  # operations of the stretch that are still in flight
        self._seen: deque[Sequence[_Operation]] = deque(maxlen=KEPT)
        self._alone: deque[Sequence[_Operation]] = deque(maxlen=KEPT)
        self._overhead_s: float | None = None
        self._fitted: Network | None = None
        self._new = False
        self._since_s = -np.inf

    def observe(self, events: NDArray[Any]) -> None:
        """Record events (EVENT_DTYPE) in time order."""
        pushes = events[events["queue"] == QueueKind.PUSH]
        for event in pushes[pushes["kind"] != EventKind.ADD]:
            id_, time_s = int(event["gradient"]), float(event["time_s"])
            if event["gap"]:
                self._started.clear()
                self._stretch.clear()
                self._others.clear()
            if event["kind"] == EventKind.START:
                self._started[id_] = time_s
                continue
            start_s = self._started.pop(id_, None)
            if start_s is not None:
                self._ended(id_, _Operation(start_s, self._ended_s, time_s, int(event["bytes"])))

    def _ended(self, id_: int, operation: _Operation) -> None:
        if operation.start_s > operation.before_s:
            self._close()  # nothing was in flight before it
        if not self._others:
            self._others.update(self._started)
        self._stretch.append(operation)
        self._ended_s = operation.end_s
        self._others.discard(id_)
        if not self._others and len(self._stretch) >= TOGETHER:
            self._close()

    def _close(self) -> None:
        """Close the stretch. A lone operation includes its delay, and counts only in a job with nothing else."""
        if self._stretch:
            seen = self._seen if len(self._stretch) > 1 else self._alone
            seen.append(tuple(self._stretch))
            self._new = True
        self._stretch.clear()
        self._others.clear()

    def observe_nic(self, sample: NicSample) -> None:
        """Ignore an interface's counters: other traffic shows in the times of operations."""

    def disregard(self, before_s: float) -> None:
        """Ignore operations of an earlier cut, which shared the wire in another way.

        Mixed with operations of the present cut, they would give a wrong overhead.
        """
        self._since_s = before_s

    def expect(self, network: Network) -> None:
        """Start from a network measured earlier: its overhead holds until this job has measured its own."""
        self._overhead_s = network.overhead_s

    @property
    def network(self) -> Network | None:
        """E(s) of the newest operations; None while there are too few."""
        stretches = list(self._seen if len(self._seen) >= LEAST else self._alone)
        if self._fitted is not None:
            stretches = [stretch for stretch in stretches if stretch[0].start_s >= self._since_s]
        if self._new and len(stretches) >= LEAST:
            self._new = False
            since_s = stretches[-1][-1].end_s - WINDOW_S
            recent = [stretch for stretch in stretches if stretch[-1].end_s >= since_s]
            self._fit(recent if len(recent) >= LEAST else stretches[-LEAST:])
        return self._fitted

    def pace_s(self, size_bytes: float) -> float | None:
        """Return the seconds between two ends of operations of about this size, with as many in flight as lately; None
        while too few have been seen.
        """
        paces = []
        since_s = self._ended_s - WINDOW_S
        for stretch in self._seen:
            first, last = stretch[0], stretch[-1]
            mean_bytes = sum(each.size_bytes for each in stretch) / len(stretch)
            went_on = first.start_s <= first.before_s  # after a pause the time includes the first operation's delay
            if went_on and last.end_s >= since_s and abs(mean_bytes - size_bytes) <= LIKE_THESE * size_bytes:
                paces.append((last.end_s - first.before_s) / len(stretch))
        return float(np.median(paces)) if len(paces) >= LEAST else None

    def _fit(self, stretches: Sequence[Sequence[_Operation]]) -> None:
        delay_s = self._delay_s(stretches)
        rows = _rows(_joined(stretches), delay_s)
        typical = rows[:, 2] / rows[:, 1]
        alike = bool(np.std(typical) < ALIKE * np.mean(typical))
        overhead_s, per_byte = self._of_one_size(rows) if alike else _line(rows)
        if not alike:
            self._overhead_s = overhead_s
        if per_byte > 0:
            self._fitted = Network(1.0 / per_byte, overhead_s, delay_s)

    def _delay_s(self, stretches: Sequence[Sequence[_Operation]]) -> float:
        """Return the probe's delay, but at most the shortest latency of an operation."""
        if self._probe is None:
            return 0.0
        per_byte = 1.0 / self._fitted.bandwidth if self._fitted is not None else 0.0
        least_s = min(each.end_s - each.start_s for stretch in stretches for each in stretch)
        return max(0.0, min(self._probe.seconds - self._probe.size_bytes * per_byte, least_s))

    def _of_one_size(self, rows: NDArray[np.float64]) -> tuple[float, float]:
        """Return (overhead, seconds per byte) for operations of about one size.

        With few of them in flight on a long delay, their times say more about the delay than about their cost. Then the
        last result holds.
        """
        telling = rows[rows[:, 0] > rows[:, 3]]
        if not len(telling) and self._fitted is not None:
            return self._fitted.overhead_s, 1.0 / self._fitted.bandwidth
        seconds, counts, sizes, _ = (telling if len(telling) else rows).T
        size = float(np.mean(sizes / counts))
        known_s = LIKELY_OVERHEAD_S if self._overhead_s is None else self._overhead_s
        each_s = float(np.median(seconds / counts))
        if known_s < each_s:
            return known_s, (each_s - known_s) / size
        return 0.5 * each_s, 0.5 * each_s / size


def _joined(stretches: Sequence[Sequence[_Operation]]) -> list[list[Sequence[_Operation]]]:
    """Return observations: stretches without a pause, joined until they have JOINED operations and nothing LARGER is in
    flight. If that gave fewer than LEAST observations, each needs fewer operations. A rest joins the one before it.
    """
    least = min(JOINED, sum(map(len, stretches)) // LEAST)
    joined: list[list[Sequence[_Operation]]] = []
    for run in _runs(stretches):
        operations = [each for stretch in run for each in stretch]
        first, end = 0, 0
        ends = []
        for number, stretch in enumerate(run, 1):
            end += len(stretch)
            last = stretch[-1]
            under_way = (each for each in operations[end : end + UNDER_WAY] if each.start_s < last.end_s)
            larger = any(each.size_bytes > LARGER * last.size_bytes for each in under_way)
            if end - first >= least and not larger:
                ends.append(number)
                first = end
        ends = [*ends[:-1], len(run)] if ends else [len(run)]
        joined += [run[a:b] for a, b in itertools.pairwise([0, *ends])]
    return joined


def _runs(stretches: Sequence[Sequence[_Operation]]) -> list[list[Sequence[_Operation]]]:
    """Return groups of stretches that follow one another without a pause."""
    runs: list[list[Sequence[_Operation]]] = []
    for stretch in stretches:
        if runs and stretch[0].start_s <= stretch[0].before_s == runs[-1][-1][-1].end_s:
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    return runs


def _line(rows: NDArray[np.float64]) -> tuple[float, float]:
    """Return the most probable (overhead, seconds per byte), neither below 0: least absolute deviations by reweighted
    least squares, with the likely overhead as prior.

    Relative errors count the same at any size. They are relative to the line's value plus the error of the delay.
    """
    seconds, counts, sizes, delay_error_s = rows.T
    table = np.stack([counts, sizes], axis=1)
    on_line_s, deviation, off_s = seconds, np.ones(len(rows)), LIKELY_ERROR_S
    for _ in range(FITS):
        weight = 1.0 / np.sqrt(np.maximum(deviation, EXACT)) / (on_line_s + delay_error_s)
        spread = (FREEDOM * LIKELY_ERROR_S**2 + off_s**2) / (FREEDOM + 1)
        likely = math.sqrt(max(EXACT, float(np.mean(deviation))) / spread)
        left = np.concatenate([table * weight[:, None], [[likely, 0.0]]])
        right = np.append(seconds * weight, likely * LIKELY_OVERHEAD_S)
        (overhead_s, per_byte), *_ = np.linalg.lstsq(left, right, rcond=None)
        on_line_s = np.maximum(table @ (overhead_s, per_byte), EXACT * seconds)
        deviation = np.abs(seconds - table @ (overhead_s, per_byte)) / (on_line_s + delay_error_s)
        off_s = overhead_s - LIKELY_OVERHEAD_S
    if overhead_s < 0:
        return 0.0, float(np.median(seconds / sizes))
    if per_byte <= 0:
        # The cost of bytes is hidden by the overhead; the time per byte bounds it.
        return float(np.median(seconds / counts)), 0.05 * float(np.min(seconds / sizes))
    return float(overhead_s), float(per_byte)


def _rows(observations: Sequence[Sequence[Sequence[_Operation]]], delay_s: float) -> NDArray[np.float64]:
    """Return a row per observation: (cost of its operations in s, their number, their bytes, error due to delay)."""
    stretches = [stretch for stretches in observations for stretch in stretches]
    ends = np.array([(each[0].start_s, each[0].before_s, each[-1].end_s) for each in stretches])
    start_s, before_s, end_s = ends.T
    counts = np.array([len(stretch) for stretch in stretches], float)
    sizes = np.array([sum(each.size_bytes for each in stretch) for stretch in stretches], float)
    took_s = end_s - np.maximum(start_s, before_s)
    went_on_s, went_on_error_s = _under_way(took_s, counts, delay_s)
    waited_s = max(0.0, delay_s - WAKING_S)
    paused = start_s > before_s
    cost_s = np.maximum(np.where(paused, took_s - waited_s, went_on_s), LEAST_COST * took_s)
    error_s = np.where(paused, np.where(counts > 1, 1.0, DELAY_ERROR) * waited_s, went_on_error_s)
    first = np.cumsum([0, *(len(stretches) for stretches in observations[:-1])])
    return np.stack([np.add.reduceat(row, first) for row in (cost_s, counts, sizes, error_s)], axis=1)


def _under_way(
    took_s: NDArray[np.float64], counts: NDArray[np.float64], delay_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the costs n E of n operations that were always in flight and took T, and the errors due to the delay L.

    The costs solve (n E)^TOGETHER_BY + (L + E)^TOGETHER_BY = T^TOGETHER_BY.
    """
    power = TOGETHER_BY
    each_s = np.maximum(np.minimum(took_s / counts, took_s - delay_s), LEAST_COST * took_s / counts)
    for _ in range(NEWTON):  # The left side is convex, so steps from above stay above.
        wire, trip = (counts * each_s / took_s) ** (power - 1), ((delay_s + each_s) / took_s) ** (power - 1)
        beyond = (counts * wire + trip) * each_s / took_s + trip * delay_s / took_s - 1
        each_s = np.maximum(each_s - beyond * took_s / (power * (counts * wire + trip)), LEAST_COST * took_s / counts)
    return counts * each_s, counts * DELAY_ERROR * delay_s * trip / (counts * wire + trip)
