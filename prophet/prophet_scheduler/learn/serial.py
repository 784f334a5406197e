"""The network as an engine of collectives sees it: what each operation adds to the time, not how long it is under way.

Rule of this file: statistics over events; no clock, thread or file. Times are seconds, sizes bytes.

Collectives of one group take turns, and a few are issued ahead so that the next begins when one ends. So how long one
is under way says little: it waits for those before it. While something is always in flight, though, the time from one
end to the next is what an operation costs, E(s) = overhead + s / bandwidth (paper, Eq. 10), handing it over and waking
threads included. But those that are under way together have sent their first parts before the first of them sends its
last. Their ends come in bursts: one seems to cost what all do, and the next ones nothing. So those that are under way
when one ends are taken together, until the last of them has ended. Most of those that are issued meanwhile have their
parts behind theirs, but a large one beside small ones has sent half of its bytes when these are back: they seem to cost
what it does, and it hardly anything. So those that came without a pause are joined to observations of some operations
at least, until no such one is under way, and an error is a share of what the line has there: as a share of what was
seen, what seems cheap would count most.

An operation goes to and fro between ranks. Where that takes long, those that are under way at once may be too few to
keep the wire busy, and while the wire waits nothing is learned of what they cost. How long one of hardly any bytes
takes on a wire that is idle was measured before the job's first iteration (`Probe`). That is the delay, and only what
an operation takes beyond it, and beyond the end of the one before it, is its cost.

Those that are under way together may also wait together, first all of them for the delay and then all for the wire. So
even if there should be enough to hide the delay, blocks may come back more slowly than they cost. What comes next is
planned by that (`pace_s`): an urgent block that is to have its turn when it is generated would come late otherwise.

A rank that waits for a later one sees operations take longer than they do. Such times lie above the line and are left
out, as far as they are not the rule.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from prophet_scheduler.core.events import EventKind, QueueKind
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.learn.bandwidth import NicSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER = 2
"""Operations in one stretch at least, but for one that is followed by a pause."""
JOINED = 4
"""Operations in one observation at least, of those that came without a pause, where there are enough of them."""
LARGER = 32
"""An observation does not end beside an operation under way that has so many times the bytes of what ended last."""
UNDER_WAY = 16
"""At an end so many others are under way at most."""
KEPT = 400
"""Stretches that are kept."""
WINDOW_S = 15.0
"""Those of the last so many seconds count."""
LEAST = 8
"""The newest so many count in any case, and fewer say nothing."""
ALIKE = 0.25
"""Sizes that scatter by less than this share of their mean say nothing of what an operation costs besides its bytes."""
FITS = 12
"""So often is the line drawn, each time with less of what lies off it."""
EXACT = 0.01
"""What lies off the line by less than this share of itself lies on it."""
WAKING_S = 2e-3
"""As much of a delay may be threads that wake up, on all ranks: that is work, which more at once do not make less."""
LEAST_COST = 0.02
"""Of the time that an operation adds at least this share is its cost: the delay is not known so well."""
DELAY_ERROR = 0.1
"""By about this share of itself a delay is another each time."""
LIKE_THESE = 0.1
"""Operations are of about a size where they differ by at most this share."""


class _Operation(NamedTuple):
    """`before_s`: when the one before it ended. Seconds of the job's clock, bytes."""

    start_s: float
    before_s: float
    end_s: float
    size_bytes: int


class SerialMonitor:
    """Fits E(s) to operations that take turns. `probe`: of one by itself, where that was measured."""

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe
        self._started: dict[int, float] = {}
        self._ended_s = -np.inf
        self._stretch: list[_Operation] = []
        self._others: set[int] = set()  # of the stretch, under way yet
        self._seen: deque[Sequence[_Operation]] = deque(maxlen=KEPT)
        self._alone: deque[Sequence[_Operation]] = deque(maxlen=KEPT)
        self._overhead_s: float | None = None
        self._fitted: Network | None = None
        self._new = False
        self._since_s = -np.inf

    def observe(self, events: NDArray[Any]) -> None:
        """Takes in events (EVENT_DTYPE), in order of time."""
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
        """What has come without a pause is a stretch. One operation alone shows its delay too, and counts only in
        a job that has nothing else.
        """
        if self._stretch:
            seen = self._seen if len(self._stretch) > 1 else self._alone
            seen.append(tuple(self._stretch))
            self._new = True
        self._stretch.clear()
        self._others.clear()

    def observe_nic(self, sample: NicSample) -> None:
        """An interface's counters say nothing here: what others send shows in what operations take."""

    def disregard(self, before_s: float) -> None:
        """Operations of a former cut do not count, which shared the wire in another way.

        Beside those of this cut they would seem to tell what a message costs from what its bytes do, and tell it wrong.
        """
        self._since_s = before_s

    def expect(self, network: Network) -> None:
        """What was measured before: what an operation costs besides its bytes is believed until it is measured."""
        self._overhead_s = network.overhead_s

    @property
    def network(self) -> Network | None:
        """E(s) by the newest operations; None while there are too few."""
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
        """Seconds from one end to the next of operations of about so many bytes, with as many under way as there have
        been lately; None while too few have been seen.
        """
        paces = []
        since_s = self._ended_s - WINDOW_S
        for stretch in self._seen:
            first, last = stretch[0], stretch[-1]
            mean_bytes = sum(each.size_bytes for each in stretch) / len(stretch)
            went_on = first.start_s <= first.before_s  # after a pause the first one's delay is in it
            if went_on and last.end_s >= since_s and abs(mean_bytes - size_bytes) <= LIKE_THESE * size_bytes:
                paces.append((last.end_s - first.before_s) / len(stretch))
        return float(np.median(paces)) if len(paces) >= LEAST else None

    def _fit(self, stretches: Sequence[Sequence[_Operation]]) -> None:
        delay_s = self._delay_s(stretches)
        rows = _observations(_joined(stretches), max(0.0, delay_s - WAKING_S))
        typical = rows[:, 2] / rows[:, 1]
        alike = bool(np.std(typical) < ALIKE * np.mean(typical))
        overhead_s, per_byte = self._of_one_size(rows) if alike else _line(rows)
        if not alike:
            self._overhead_s = overhead_s
        if per_byte > 0:
            self._fitted = Network(1.0 / per_byte, overhead_s, delay_s)

    def _delay_s(self, stretches: Sequence[Sequence[_Operation]]) -> float:
        """What the probe was delayed by; no operation has ever taken less."""
        if self._probe is None:
            return 0.0
        per_byte = 1.0 / self._fitted.bandwidth if self._fitted is not None else 0.0
        least_s = min(each.end_s - each.start_s for stretch in stretches for each in stretch)
        return max(0.0, min(self._probe.seconds - self._probe.size_bytes * per_byte, least_s))

    def _of_one_size(self, rows: NDArray[np.float64]) -> tuple[float, float]:
        """(overhead, seconds a byte), where only what an operation of such a size takes is known."""
        seconds, counts, sizes, _ = rows.T
        size = float(np.mean(sizes / counts))
        known_s = self._overhead_s or 0.0
        each_s = float(np.median(seconds / counts))
        if known_s < each_s:
            return known_s, (each_s - known_s) / size
        return 0.5 * each_s, 0.5 * each_s / size


def _joined(stretches: Sequence[Sequence[_Operation]]) -> list[list[_Operation]]:
    """Observations: what came without a pause, until it is JOINED operations, or fewer where LEAST observations would
    not be left, and nothing LARGER is under way. What is left before a pause belongs to the last.
    """
    least = min(JOINED, sum(map(len, stretches)) // LEAST)
    joined: list[list[_Operation]] = []
    for run in _runs(stretches):
        operations = [each for stretch in run for each in stretch]
        first, end = 0, 0
        ends = []
        for stretch in run:
            end += len(stretch)
            last = stretch[-1]
            under_way = (each for each in operations[end : end + UNDER_WAY] if each.start_s < last.end_s)
            larger = any(each.size_bytes > LARGER * last.size_bytes for each in under_way)
            if end - first >= least and not larger:
                ends.append(end)
                first = end
        ends = [*ends[:-1], len(operations)] if ends else [len(operations)]
        joined += [operations[a:b] for a, b in itertools.pairwise([0, *ends])]
    return joined


def _runs(stretches: Sequence[Sequence[_Operation]]) -> list[list[Sequence[_Operation]]]:
    """Stretches that followed one another without a pause."""
    runs: list[list[Sequence[_Operation]]] = []
    for stretch in stretches:
        if runs and stretch[0].start_s <= stretch[0].before_s == runs[-1][-1][-1].end_s:
            runs[-1].append(stretch)
        else:
            runs.append([stretch])
    return runs


def _line(rows: NDArray[np.float64]) -> tuple[float, float]:
    """(overhead, seconds a byte), neither below 0: the line of the least absolute deviations, by reweighted squares.

    Relative errors count alike, whatever the size: as shares of what the line has, and of what a delay is wrong by.
    """
    seconds, counts, sizes, delay_error_s = rows.T
    table = np.stack([counts, sizes], axis=1)
    on_line_s, root = seconds, np.ones(len(rows))
    for _ in range(FITS):
        weight = root / (on_line_s + delay_error_s)
        (overhead_s, per_byte), *_ = np.linalg.lstsq(table * weight[:, None], seconds * weight, rcond=None)
        on_line_s = np.maximum(table @ (overhead_s, per_byte), EXACT * seconds)
        deviation = np.abs(seconds - table @ (overhead_s, per_byte)) / (on_line_s + delay_error_s)
        root = 1.0 / np.sqrt(np.maximum(deviation, EXACT))
    if overhead_s < 0:
        return 0.0, float(np.median(seconds / sizes))
    if per_byte <= 0:
        # The bytes are lost in the rest: at least what the largest took bounds their rate.
        return float(np.median(seconds / counts)), 0.05 * float(np.min(seconds / sizes))
    return float(overhead_s), float(per_byte)


def _observations(stretches: Sequence[Sequence[_Operation]], delay_s: float) -> NDArray[np.float64]:
    """Of each (seconds that its operations cost, how many, their bytes, seconds that a delay makes that wrong by)."""
    start_s, before_s, end_s, sizes = np.array([each for stretch in stretches for each in stretch]).T
    counts = np.array([len(stretch) for stretch in stretches])
    added_s = end_s - np.maximum(start_s, before_s)
    cost_s = np.maximum(end_s - np.maximum(start_s + delay_s, before_s), LEAST_COST * added_s)
    first = np.append(0, np.cumsum(counts)[:-1])
    added_s, cost_s, sizes = (np.add.reduceat(row, first) for row in (added_s, cost_s, sizes))
    return np.stack([cost_s, counts, sizes, DELAY_ERROR * (added_s - cost_s)], axis=1)
