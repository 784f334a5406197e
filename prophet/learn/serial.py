"""The network as an engine of collectives sees it: what each operation adds to the time, not how long it is under way.

Rule of this file: statistics over events; no clock, thread or file. Times are seconds, sizes bytes.

Collectives of one group take turns, and a few are issued ahead so that the next begins when one ends. So how long one
is under way says little: it waits for those before it. While something is always in flight, though, the time from one
end to the next is what an operation costs, E(s) = overhead + s / bandwidth (paper, Eq. 10), handing it over and waking
threads included. Operations that follow one another without a pause are taken together, a few at a time, since two that
overlap end at nearly the same moment.

The first of them goes to and fro on its own before anything fills the wire, and so takes longer. That is the delay of
the network and of whoever answers; operations behind it have theirs while others travel. What the first ones took
besides E(s) is `ack_delay_s` here.

A rank that waits for a later one sees operations take longer than they do. Such times lie above the line and are left
out, as far as they are not the rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from prophet.core.events import EventKind, QueueKind
from prophet.core.network import Network
from prophet.learn.bandwidth import NicSample

TOGETHER = 6
"""Operations in one observation at most."""
KEPT = 400
"""Observations, of which those of the last WINDOW_S count, and the newest LEAST in any case."""
WINDOW_S = 15.0
LEAST = 8
ALIKE = 0.1
"""Sizes that scatter by less than this share of their mean say nothing of what an operation costs besides its bytes."""
OUTLIER = 3.0
"""Observations this many robust standard deviations above the line are of another rank's lateness."""
FITS = 4


class Observation(NamedTuple):
    """`count` operations of `size_bytes` together, which took `seconds`; `first` where the wire was idle before."""

    ended_s: float
    first: bool
    seconds: float
    count: int
    size_bytes: int


def _table(rows: Sequence[Observation]) -> NDArray[np.float64]:
    """(seconds, count, bytes) of each."""
    return np.array([(row.seconds, row.count, row.size_bytes) for row in rows], dtype=float).reshape(-1, 3)


class SerialMonitor:
    """Fits E(s) to operations that take turns."""

    def __init__(self) -> None:
        self._started: dict[int, float] = {}
        self._ended_s = -np.inf
        self._stretch: list[tuple[float, int]] = []
        self._first = True  # Whether the stretch began on an idle wire.
        self._seen: deque[Observation] = deque(maxlen=KEPT)
        self._alone: deque[Observation] = deque(maxlen=KEPT)
        self._overhead_s: float | None = None
        self._fitted: Network | None = None
        self._new = False

    def observe(self, events: NDArray[Any]) -> None:
        """Takes in events (EVENT_DTYPE), in order of time."""
        pushes = events[events["queue"] == QueueKind.PUSH]
        for event in pushes[pushes["kind"] != EventKind.ADD]:
            id_, time_s = int(event["gradient"]), float(event["time_s"])
            if event["gap"]:
                self._started.clear()
                self._stretch.clear()
            if event["kind"] == EventKind.START:
                self._started[id_] = time_s
                continue
            start_s = self._started.pop(id_, None)
            if start_s is not None:
                self._ended(start_s, time_s, int(event["bytes"]))

    def _ended(self, start_s: float, time_s: float, size: int) -> None:
        if start_s > self._ended_s:
            self._close()
            self._first = True  # nothing was in flight before it
        self._stretch.append((time_s - max(start_s, self._ended_s), size))
        self._ended_s = time_s
        if len(self._stretch) == TOGETHER:
            self._close()

    def _close(self) -> None:
        """What has come without a pause is an observation. One operation alone shows its delay too, and counts only in
        a job that has nothing else.
        """
        if self._stretch:
            seconds, sizes = zip(*self._stretch, strict=True)
            seen = self._seen if len(sizes) > 1 else self._alone
            seen.append(Observation(self._ended_s, self._first, sum(seconds), len(sizes), sum(sizes)))
            self._new = True
            self._first = False
        self._stretch.clear()

    def observe_nic(self, sample: NicSample) -> None:
        """An interface's counters say nothing here: what others send shows in what operations take."""

    def expect(self, network: Network) -> None:
        """What was measured before: what an operation costs besides its bytes is believed until it is measured."""
        self._overhead_s = network.overhead_s

    @property
    def network(self) -> Network | None:
        """E(s) by the newest operations; None while there are too few."""
        rows = list(self._seen if len(self._seen) >= LEAST else self._alone)
        if self._new and len(rows) >= LEAST:
            self._new = False
            newest_s = rows[-1].ended_s
            recent = [row for row in rows if row.ended_s >= newest_s - WINDOW_S]
            self._fit(recent if len(recent) >= LEAST else rows[-LEAST:])
        return self._fitted

    def _fit(self, seen: Sequence[Observation]) -> None:
        # Where most operations are alone or nearly so, what they take is all that can be said.
        behind = [row for row in seen if not row.first]
        told_apart = len(behind) >= LEAST
        rows = _table(behind if told_apart else seen)
        overhead_s, per_byte = 0.0, 0.0
        for _ in range(FITS):
            overhead_s, per_byte = self._line(rows)
            seconds, counts, sizes = rows.T
            error = seconds - overhead_s * counts - per_byte * sizes
            spread = 1.4826 * float(np.median(np.abs(error - np.median(error))))
            kept = error <= np.median(error) + OUTLIER * max(spread, 1e-9)
            if kept.all() or kept.sum() < LEAST:
                break
            rows = rows[kept]
        if per_byte > 0:
            first = _table([row for row in seen if row.first]) if told_apart else _table([])
            delays = first[:, 0] - overhead_s * first[:, 1] - per_byte * first[:, 2]
            delay_s = max(0.0, float(np.median(delays))) if len(delays) else 0.0
            self._fitted = Network(1.0 / per_byte, overhead_s, delay_s)

    def _line(self, rows: NDArray[np.float64]) -> tuple[float, float]:
        """(overhead, seconds a byte), neither below 0."""
        seconds, counts, sizes = rows.T
        typical = sizes / counts
        if np.std(typical) < ALIKE * np.mean(typical):
            # One size: only what such an operation takes is known.
            known_s = self._overhead_s or 0.0
            each_s = float(np.median(seconds / counts))
            if known_s < each_s:
                return known_s, (each_s - known_s) / float(np.mean(typical))
            return 0.5 * each_s, 0.5 * each_s / float(np.mean(typical))
        # Relative errors count alike, whatever the size.
        weight = 1.0 / seconds
        table = np.stack([counts * weight, sizes * weight], axis=1)
        solution, *_ = np.linalg.lstsq(table, np.ones(len(rows)), rcond=None)
        overhead_s, per_byte = float(solution[0]), float(solution[1])
        if overhead_s < 0:
            overhead_s, per_byte = 0.0, float(np.median(seconds / sizes))
        elif per_byte <= 0:
            # The bytes are lost in the rest: at least what the largest took bounds their rate.
            overhead_s = float(np.median(seconds / counts))
            per_byte = 0.05 * float(np.min(seconds / sizes))
        self._overhead_s = overhead_s
        return overhead_s, per_byte
