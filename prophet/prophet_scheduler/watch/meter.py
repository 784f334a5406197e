"""Statistics of a worker's link from events: rates, busy time, and blocks by urgency.

Rule of this file: pure statistics over events (core/events.py); the caller passes the time in. Times are seconds of the
steady clock, sizes bytes. A training job calls this about once a second with up to some ten thousand events, so no
code here loops over single events.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueKind, name_of, unbroken
from prophet_scheduler.watch.status import Flow, Spread, UrgencyBand

if TYPE_CHECKING:
    from numpy.typing import NDArray

BANDS = 8
"""Number of urgency bands of gradients."""
WINDOW_S = 5.0
"""Length of the window for rates; an iteration is often longer than one turn."""
PERIODS = 50
"""Number of iterations in the spread, as many as the profiler uses."""
MOST_OPEN = 1 << 16
"""Maximum events kept of unfinished transfers. If there are more, the engine has dropped some of the transfers."""

TRANSFER_DTYPE = np.dtype(
    [
        ("gradient", "<u4"),
        ("partition", "<u2"),
        ("queue", "u1"),
        ("bytes", "<u4"),
        ("added_s", "<f8"),
        ("start_s", "<f8"),
        ("finish_s", "<f8"),
    ]
)
"""Layout of one finished transfer."""


@dataclass(frozen=True)
class MeterTurn:
    """Transfers (TRANSFER_DTYPE) that finished in one turn of `seconds`, and the bytes moved in it."""

    seconds: float
    ended: NDArray[Any]
    sent_bytes: int
    received_bytes: int
    busy_s: tuple[float, float]
    """Busy seconds of the push lane and of the pull lane."""


class Meter:
    """Meter of one worker. For `arena`, see name_of.

    `all_reduce_ranks` is the number of ranks in an all-reduce, which is recorded as a push without a pull; None for an
    engine with pushes and pulls.
    """

    def __init__(self, all_reduce_ranks: int | None = None, arena: bool = True) -> None:
        self._ranks = all_reduce_ranks
        self._arena = arena
        self._open = np.zeros(0, EVENT_DTYPE)
        self._turns: deque[MeterTurn] = deque()
        self._before: float | None = None
        self._most_id = 0
        self._total = [0, 0]
        self._waiting = self._in_flight = self._open

    @property
    def all_reduces(self) -> bool:
        """True for an engine with all-reduces."""
        return self._ranks is not None

    def turn(self, now: float, events: NDArray[Any]) -> MeterTurn:
        """Process the events since the last turn, ordered by time."""
        ended = self.pair(events)
        since = self._before if self._before is not None else float(events["time_s"][0]) if len(events) else now
        self._before = now
        moved = [int(ended["bytes"][ended["queue"] == lane].sum()) for lane in QueueKind]
        if self._ranks is not None:
            # In a ring of n ranks, each rank sends and receives (n - 1)/n of the bytes twice.
            moved = [round(moved[QueueKind.PUSH] * 2 * (self._ranks - 1) / self._ranks)] * 2
        self._total = [total + more for total, more in zip(self._total, moved, strict=True)]
        busy = [self._busy_s(ended, lane, since, now) for lane in QueueKind]
        if self._ranks is not None:
            busy[QueueKind.PULL] = busy[QueueKind.PUSH]
        latest = MeterTurn(max(now - since, 0.0), ended, moved[0], moved[1], (busy[0], busy[1]))
        self._turns.append(latest)
        while len(self._turns) > 1 and sum(turn.seconds for turn in self._turns) > WINDOW_S:
            self._turns.popleft()
        return latest

    def flows(self) -> tuple[Flow, Flow]:
        """Return the traffic (sent, received), with rates over the last WINDOW_S."""
        seconds = sum(turn.seconds for turn in self._turns)
        if seconds <= 0:
            return Flow(self._total[0]), Flow(self._total[1])
        sent = sum(turn.sent_bytes for turn in self._turns)
        received = sum(turn.received_bytes for turn in self._turns)
        busy = [sum(turn.busy_s[lane] for turn in self._turns) / seconds for lane in (0, 1)]
        return (
            Flow(self._total[0], sent / seconds, min(1.0, busy[0])),
            Flow(self._total[1], received / seconds, min(1.0, busy[1])),
        )

    def urgency(self) -> tuple[UrgencyBand, ...]:
        """Return current transfers by band of gradients in forward order, most urgent band first."""
        if not self._turns:
            return ()
        top = self._most_id + 1
        counts = min(BANDS, top)
        ended = np.concatenate([turn.ended for turn in self._turns])
        band_of = ended["gradient"].astype(np.int64) * counts // top
        waited = np.bincount(band_of, ended["start_s"] - ended["added_s"], counts)
        several = np.bincount(band_of, minlength=counts)
        rows = []
        columns = [_by_band(rows_, counts, top) for rows_ in (self._waiting, self._in_flight)]
        for band in range(counts):
            first = -(-band * top // counts)
            (waiting, waiting_bytes), (in_flight, in_flight_bytes) = (column[band] for column in columns)
            wait_s = float(waited[band] / several[band]) if several[band] else None
            name = name_of(first, self._arena)
            rows.append(UrgencyBand(first, name, waiting, waiting_bytes, in_flight, in_flight_bytes, wait_s))
        return tuple(rows)

    def where(self, ids: list[int]) -> str | None:
        """Return the state of these gradients' or blocks' transfers: "waiting" if a push has yet to start, else "push"
        or "pull" for the transfer in flight or next; None if there is no transfer.
        """
        if np.isin(self._waiting["gradient"][self._waiting["queue"] == QueueKind.PUSH], ids).any():
            return "waiting"
        flying = self._in_flight["queue"][np.isin(self._in_flight["gradient"], ids)]
        if len(flying):
            return "push" if (flying == QueueKind.PUSH).any() else "pull"
        return "pull" if np.isin(self._waiting["gradient"], ids).any() else None

    def pair(self, events: NDArray[Any]) -> NDArray[Any]:
        """Match events, ordered by time, with those of unfinished transfers. Return the transfers that finished."""
        return np.concatenate([np.zeros(0, TRANSFER_DTYPE), *(self._pair(*piece) for piece in unbroken(events))])

    def _pair(self, after_gap: bool, events: NDArray[Any]) -> NDArray[Any]:
        """Do the same for events without a gap between them."""
        if after_gap:
            self._open = self._waiting = self._in_flight = self._open[:0]
        own = (events["kind"] <= EventKind.FINISH) & (events["gradient"] < UNPROFILED_GRADIENT)
        rows = np.concatenate([self._open, events[own]])
        if not len(rows):
            return np.zeros(0, TRANSFER_DTYPE)
        self._most_id = max(self._most_id, int(rows["gradient"].max()))
        keys = rows["queue"].astype(np.int64) << 48 | rows["gradient"].astype(np.int64) << 16 | rows["partition"]
        order = np.argsort(keys, kind="stable")
        rows, keys = rows[order], keys[order]
        kinds = rows["kind"]
        same = np.append(False, keys[1:] == keys[:-1])  # same transfer as the row before
        started = (kinds == EventKind.START) & same & (np.append(255, kinds[:-1]) == EventKind.ADD)
        ends = np.flatnonzero((kinds == EventKind.FINISH) & same & np.append(False, started[:-1]))
        last = np.append(keys[1:] != keys[:-1], True)
        waiting = last & (kinds == EventKind.ADD)
        in_flight = last & started
        self._waiting, self._in_flight = rows[waiting], rows[in_flight]
        self._open = rows[waiting | in_flight | np.append(in_flight[1:], False)][-MOST_OPEN:]
        ended = np.zeros(len(ends), TRANSFER_DTYPE)
        for name in ("gradient", "partition", "queue", "bytes"):
            ended[name] = rows[name][ends]
        for name, back in (("added_s", 2), ("start_s", 1), ("finish_s", 0)):
            ended[name] = rows["time_s"][ends - back]
        by_start: NDArray[Any] = ended[np.argsort(ended["start_s"], kind="stable")]
        return by_start

    def _busy_s(self, ended: NDArray[Any], lane: QueueKind, since: float, now: float) -> float:
        """Return the seconds from `since` to `now` in which at least one transfer of this lane was in flight."""
        done = ended[ended["queue"] == lane]
        flying = self._in_flight[self._in_flight["queue"] == lane]["time_s"]
        starts = np.concatenate([done["start_s"], flying])
        stops = np.concatenate([done["finish_s"], np.full(len(flying), now)])
        return covered_s(np.clip(starts, since, now), np.clip(stops, since, now))


def covered_s(starts: NDArray[Any], stops: NDArray[Any]) -> float:
    """Return the length of the union of these intervals."""
    if not len(starts):
        return 0.0
    order = np.argsort(starts, kind="stable")
    starts, stops = starts[order], stops[order]
    reached = np.maximum.accumulate(np.append(starts[0], stops[:-1]))
    return float(np.maximum(0.0, stops - np.maximum(starts, reached)).sum())


def _by_band(rows: NDArray[Any], counts: int, top: int) -> list[tuple[int, int]]:
    """Return (count, bytes) of these transfers for each band."""
    band_of = rows["gradient"].astype(np.int64) * counts // top
    several = np.bincount(band_of, minlength=counts)
    sizes = np.bincount(band_of, rows["bytes"], counts)
    return [(int(count), int(size)) for count, size in zip(several.tolist(), sizes.tolist(), strict=True)]


class Periods:
    """Durations of the newest iterations, from their ends."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._periods_s: deque[float] = deque(maxlen=PERIODS)

    def add(self, ends_s: Iterable[float]) -> None:
        """Add ends of iterations in order. NaN stands for a pause."""
        for end_s in ends_s:
            if np.isnan(end_s):
                self._last_s = None
                continue
            if self._last_s is not None:
                self._periods_s.append(end_s - self._last_s)
            self._last_s = end_s

    def spread(self) -> Spread | None:
        """Return the spread of the newest iterations; None before the first."""
        return spread_of(list(self._periods_s))


def spread_of(periods_s: Sequence[float]) -> Spread | None:
    """Return the spread of these iteration times, which are in order; None if there are none."""
    if not periods_s:
        return None
    low, middle, high = np.quantile(periods_s, (0.1, 0.5, 0.9)).tolist()
    return Spread(middle, low, high, float(periods_s[-1]), len(periods_s), float(np.mean(periods_s)))
