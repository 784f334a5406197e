"""The iterations of a job: where each begins and ends in its events.

Rule of this file: from events to iterations; no clock, thread or file. Times that come in are the events'.

A gradient is generated when its first partition is added to the push queue. An iteration ends where a gradient comes
again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import EVENT_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD_IDS = -0.9
"""Correlation of ids with the order of generation below which ids are taken to be in forward order."""
OPENS = 2.0
"""An iteration does not begin where the pause before it is shorter by this factor than a later pause within it."""
MOST_OPEN = 1 << 18
"""Maximum events kept of an iteration without an end, as in a job whose tensors never come again."""


@dataclass(frozen=True)
class Iteration:
    """Gradients of one iteration: `ids` ascending, first time and total bytes of each."""

    ids: NDArray[Any]
    times: NDArray[Any]
    sizes: NDArray[Any]
    returned: NDArray[Any] = field(default_factory=lambda: np.zeros(0, EVENT_DTYPE))
    """Ends of pulls (EVENT_DTYPE) between the iteration before and this one."""
    forward_end_s: float = np.nan
    """End of the forward pass before it, if known."""

    @classmethod
    def of(cls, events: NDArray[Any]) -> Iteration:
        ids, first, member = np.unique(events["gradient"], return_index=True, return_inverse=True)
        return cls(ids.astype(np.int64), events["time_s"][first], np.bincount(member, events["bytes"]))

    @property
    def begin_s(self) -> float:
        return float(self.times.min())

    @property
    def span_s(self) -> float:
        return float(np.ptp(self.times))


class Splitter:
    """Splitter of generated gradients into iterations."""

    def __init__(self) -> None:
        self._open = np.zeros(0, EVENT_DTYPE)  # the iteration that is not over yet
        self._usual: dict[int, float] = {}  # latest time of each gradient, after its iteration's first
        self._last_s = -np.inf  # time of the last gradient before the open ones
        self._after_gap = False  # the open iteration lacks its beginning

    def lost(self) -> None:
        """Note that events are lost: the open iteration lacks some."""
        self._open = self._open[:0]
        self._after_gap = True

    def restart(self) -> None:
        """Forget all: from here on other ids come."""
        self.lost()
        self._usual = {}

    def split(self, generated: NDArray[Any]) -> Iterator[Iteration]:
        """Yield the iterations that end with these generated gradients (EVENT_DTYPE), in order of time."""
        rows = np.concatenate([self._open, generated])
        # The previous place of each partition; an iteration ends where this lies within it.
        keys = rows["gradient"].astype(np.int64) << 16 | rows["partition"]
        order = np.argsort(keys, kind="stable")
        again = np.flatnonzero(keys[order][1:] == keys[order][:-1])
        before = np.full(len(rows), -1)
        before[order[again + 1]] = order[again]
        start = 0
        while (repeats := before[start:] >= start).any():
            repeated = start + int(np.argmax(repeats))
            if self._after_gap:
                start = self._first_whole(rows, start, repeated)
                self._after_gap = False
                continue
            end = self._cut(rows, start, repeated)
            iteration = Iteration.of(rows[start:end])
            self._usual.update(zip(iteration.ids.tolist(), (iteration.times - iteration.begin_s).tolist(), strict=True))
            yield iteration
            start = end
        if start:
            self._last_s = float(rows["time_s"][start - 1])
        self._open = rows[start:][-MOST_OPEN:]

    def _first_whole(self, rows: NDArray[Any], start: int, end: int) -> int:
        """Return the place of the first event of a whole iteration, if events before `start` were lost.

        Within an iteration the gradients' usual times rise, so the place is where they fall by the most. If these times
        are unknown, it is after the longest pause, provided ids rise most there.
        """
        usual = np.array([self._usual.get(gradient, np.nan) for gradient in rows["gradient"][start : end + 1].tolist()])
        known = np.flatnonzero(~np.isnan(usual))
        if len(known) < 2:
            opens, rise = _longest_pause_and_rise(rows[start : end + 1])
            return start + opens if opens == rise else self._cut(rows, start, end)
        return start + int(known[1 + np.argmin(np.diff(usual[known]))])

    def _cut(self, rows: NDArray[Any], start: int, end: int) -> int:
        """Return the place where the iteration from `start` ends, if the first gradient to come again is at `end`.

        The place may be earlier than `end`, if this iteration skipped the first gradient of the next one or if `start`
        is in the middle of an iteration: then that gradient comes for the first time. Its place is where ids rise most,
        if the longest pause, which is forward, is there too: ids in forward order, as the front end gives them, fall
        during backward. With other ids it is the longest pause, if the gradients after it usually come early.
        """
        window = rows[start : end + 1]
        ids = window["gradient"].astype(np.int64)
        opens, rise = (start + place for place in _longest_pause_and_rise(window))
        most = 2 * len(np.unique(ids[: rise - start])) > len(np.unique(ids))
        if opens == rise and ((most and _fall(ids[: rise - start])) or self._in_the_middle(rows, start, opens)):
            return rise
        if opens == end or not self._usual:
            return end
        middle = max(self._usual.get(gradient, 0.0) for gradient in rows["gradient"][start:opens].tolist()) / 2
        tail = rows["gradient"][opens:end].tolist()
        return opens if all(self._usual.get(gradient, middle) < middle for gradient in tail) else end

    def _in_the_middle(self, rows: NDArray[Any], start: int, opens: int) -> bool:
        """Return True if, by the pauses before them, `start` is within an iteration and `opens` begins the next.

        This happens once after a new cut, since new keys come in no order. Without this check it would go on for ever.
        """
        times = rows["time_s"]
        before_s = times[start - 1] if start else self._last_s
        return bool(times[opens] - times[opens - 1] > OPENS * (times[start] - before_s))


def _longest_pause_and_rise(window: NDArray[Any]) -> tuple[int, int]:
    """Return the places after the longest pause and where ids rise most."""
    pauses, rises = np.diff(window["time_s"]), np.diff(window["gradient"].astype(np.int64))
    return 1 + int(np.argmax(pauses)), 1 + int(np.argmax(rises))


def _fall(ids: NDArray[Any]) -> bool:
    """Return True if `ids`, in order of generation, are in forward order: they fall, except within steps."""
    if ids[0] == ids[-1]:
        return bool(ids.min() == ids.max())
    return bool(np.corrcoef(np.arange(len(ids)), ids)[0, 1] < FORWARD_IDS)
