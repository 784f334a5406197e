"""The network as an engine of collectives sees it: what each operation adds to the time, not how long it is under way.

Rule of this file: statistics over events; no clock, thread or file. Times are seconds, sizes bytes.

Collectives of one group take turns, and a few are issued ahead so that the next begins when one ends. So how long one
is under way says little: it waits for those before it. While something is always in flight, though, the time from one
end to the next is what an operation costs, E(s) = overhead + s / bandwidth (paper, Eq. 10), handing it over and waking
threads included. Operations that follow one another without a pause are taken together, a few at a time, since two that
overlap end at nearly the same moment.

An operation goes to and fro between ranks, and where that takes long, those that are under way at once may be too few
to keep the wire busy. What is missing then looks like a part of what each one costs: of a delay d with n under way,
d/n. How long an operation takes on a wire that is idle was measured before the job's first iteration (`Probe`), and
tells the delay, which costs nothing once enough are under way.

A rank that waits for a later one sees operations take longer than they do. Such times lie above the line and are left
out, as far as they are not the rule.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet.core.events import EventKind, QueueKind
from prophet.core.network import Network, Probe
from prophet.learn.bandwidth import NicSample

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOGETHER = 6
"""Operations in one observation at most."""
KEPT = 400
"""Observations that are kept."""
WINDOW_S = 15.0
"""Those of the last so many seconds count."""
LEAST = 8
"""The newest so many count in any case, and fewer say nothing."""
ALIKE = 0.1
"""Sizes that scatter by less than this share of their mean say nothing of what an operation costs besides its bytes."""
OUTLIER = 3.0
"""Observations this many robust standard deviations above the line are of another rank's lateness."""
FITS = 4
"""So often is the line drawn at most, each time without what the one before had for outliers."""
WAKING_S = 2e-3
"""As much of a delay may be threads that wake up, on all ranks: that is work, which more at once do not make less."""


class SerialMonitor:
    """Fits E(s) to operations that take turns. `probe`: of one by itself, where that was measured."""

    def __init__(self, probe: Probe | None = None) -> None:
        self._probe = probe
        self._at_once: deque[int] = deque(maxlen=KEPT)
        """How many operations were under way when one was issued, with it."""
        self._started: dict[int, float] = {}
        self._ended_s = -np.inf
        self._stretch: list[tuple[float, int]] = []
        self._seen: deque[tuple[float, float, int, int]] = deque(maxlen=KEPT)
        self._alone: deque[tuple[float, float, int, int]] = deque(maxlen=KEPT)
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
                self._at_once.append(len(self._started))
                continue
            start_s = self._started.pop(id_, None)
            if start_s is not None:
                self._ended(start_s, time_s, int(event["bytes"]))

    def _ended(self, start_s: float, time_s: float, size: int) -> None:
        if start_s > self._ended_s:
            self._close()  # nothing was in flight before it
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
            seen.append((self._ended_s, sum(seconds), len(sizes), sum(sizes)))
            self._new = True
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
            newest_s = rows[-1][0]
            recent = [row for row in rows if row[0] >= newest_s - WINDOW_S]
            self._fit(np.array([row[1:] for row in (recent if len(recent) >= LEAST else rows[-LEAST:])]))
        return self._fitted

    def _fit(self, rows: NDArray[np.float64]) -> None:
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
            self._fitted = self._told_apart(overhead_s, per_byte)

    def _told_apart(self, overhead_s: float, per_byte: float) -> Network:
        """What an operation costs, and what it is delayed by, of which others make use where enough are under way."""
        probe = self._probe
        if probe is None:
            return Network(1.0 / per_byte, overhead_s)
        delay_s = max(0.0, probe.seconds - probe.size_bytes * per_byte)
        missing_s = max(0.0, delay_s - WAKING_S) / float(np.median(np.array(self._at_once)))
        return Network(1.0 / per_byte, max(0.0, overhead_s - missing_s), delay_s)

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
