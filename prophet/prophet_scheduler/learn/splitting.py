"""Iterations found in a stream of events.

Rule of this file: only events; no clock, thread or file. All times are those of the events.

A gradient is generated when its first partition is added to the push queue. An iteration ends when the engine says so,
or else when a gradient is generated again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import EVENT_DTYPE, UNPROFILED_GRADIENT, EventKind, QueueKind, unbroken

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORWARD_IDS = -0.9
"""Correlation of ids with the order of generation below which ids count as being in forward order."""
OPENS = 2.0
"""A later pause exceeding the pause before an iteration's presumed start by this factor disproves that start."""
MOST_OPEN = 1 << 18
"""Maximum events kept of an unfinished iteration, as in a job whose tensors never repeat."""
NO_EVENTS = np.zeros(0, EVENT_DTYPE)


@dataclass(frozen=True)
class ObservedIteration:
    """Gradients of one iteration: `ids` in ascending order, with the first time and the total bytes of each."""

    ids: NDArray[Any]
    times: NDArray[Any]
    sizes: NDArray[Any]
    returned: NDArray[Any] = field(default_factory=lambda: NO_EVENTS)
    """Ends of pulls (EVENT_DTYPE) between the previous iteration and this one."""
    before_s: float = np.nan
    """End of the previous iteration's backward pass; NaN if unknown."""
    forward_end_s: float = np.nan
    """End of the preceding forward pass; NaN if unknown."""

    @classmethod
    def of(cls, events: NDArray[Any]) -> ObservedIteration:
        ids, first, member = np.unique(events["gradient"], return_index=True, return_inverse=True)
        return cls(ids.astype(np.int64), events["time_s"][first], np.bincount(member, events["bytes"]))

    @property
    def begin_s(self) -> float:
        return float(self.times.min())

    @property
    def span_s(self) -> float:
        return float(np.ptp(self.times))


def _generated(events: NDArray[Any]) -> NDArray[Any]:
    added = (events["kind"] == EventKind.ADD) & (events["queue"] == QueueKind.PUSH)
    generated: NDArray[Any] = events[added & (events["gradient"] < UNPROFILED_GRADIENT)]
    return generated


class RepeatSplitter:
    """Splitter of events into iterations, for engines that do not tell where one ends."""

    def __init__(self) -> None:
        self._open = NO_EVENTS  # the unfinished iteration
        self._usual: dict[int, float] = {}  # latest time of each gradient, relative to its iteration's first
        self._last_s = -np.inf  # time of the last gradient before the open iteration
        self._after_gap = False  # True if the open iteration lacks its beginning

    def restart(self, events: NDArray[Any], ends_s: Sequence[float]) -> None:
        """Forget everything: new ids follow `events`."""
        self._lost()
        self._usual = {}

    def split(self, events: NDArray[Any], ends_s: Sequence[float]) -> Iterator[ObservedIteration]:
        """Yield the iterations that end within these events (EVENT_DTYPE), which are in time order."""
        for after_gap, piece in unbroken(events):
            if after_gap:
                self._lost()
            if len(generated := _generated(piece)):
                yield from self._split(generated)

    def _lost(self) -> None:
        """Note that events of the open iteration were lost."""
        self._open = self._open[:0]
        self._after_gap = True

    def _split(self, generated: NDArray[Any]) -> Iterator[ObservedIteration]:
        rows = np.concatenate([self._open, generated])
        # Index of the previous row of the same partition; an iteration ends when this index lies within it.
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
            iteration = ObservedIteration.of(rows[start:end])
            self._usual.update(zip(iteration.ids.tolist(), (iteration.times - iteration.begin_s).tolist(), strict=True))
            yield iteration
            start = end
        if start:
            self._last_s = float(rows["time_s"][start - 1])
        self._open = rows[start:][-MOST_OPEN:]

    def _first_whole(self, rows: NDArray[Any], start: int, end: int) -> int:
        """Return the index of the first event of a whole iteration, if events before `start` were lost.

        Within an iteration the gradients' usual times rise, so the next iteration begins where they fall the most. If
        these times are unknown, it begins after the longest pause, provided ids rise most there.
        """
        usual = np.array([self._usual.get(gradient, np.nan) for gradient in rows["gradient"][start : end + 1].tolist()])
        known = np.flatnonzero(~np.isnan(usual))
        if len(known) < 2:
            opens, rise = _longest_pause_and_rise(rows[start : end + 1])
            return start + opens if opens == rise else self._cut(rows, start, end)
        return start + int(known[1 + np.argmin(np.diff(usual[known]))])

    def _cut(self, rows: NDArray[Any], start: int, end: int) -> int:
        """Return the index at which the iteration from `start` ends, if the first repeated gradient is at `end`.

        The index is below `end` if this iteration skipped the next one's first gradient or if `start` is in the middle
        of an iteration: that gradient is no repetition then. In these cases the iteration ends where ids rise most, if
        the longest pause (forward) is there too: ids in forward order, as the front end assigns them, fall during
        backward. With other ids it ends at the longest pause, if the gradients after that usually come early.
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
        """Return True if, judging by the pauses, `start` is within an iteration and `opens` begins the next.

        This happens once after a new cut, since new keys arrive in any order. Unchecked, the wrong split would persist.
        """
        times = rows["time_s"]
        before_s = times[start - 1] if start else self._last_s
        return bool(times[opens] - times[opens - 1] > OPENS * (times[start] - before_s))


class RoundSplitter:
    """Splitter of events into iterations whose ends the engine tells."""

    def __init__(self) -> None:
        self._open = NO_EVENTS
        self._whole = True  # False if the open iteration lacks its beginning

    def restart(self, events: NDArray[Any], ends_s: Sequence[float]) -> None:
        """Forget everything but those of `events` that followed the last of these ends: new ids begin there."""
        self._whole = len(ends_s) > 0
        self._open = _generated(events[events["time_s"] > ends_s[-1]]) if self._whole else NO_EVENTS

    def split(self, events: NDArray[Any], ends_s: Sequence[float]) -> Iterator[ObservedIteration]:
        """Yield the iterations that ended at these times. All their gradients are in the events up to now."""
        gaps = events["time_s"][events["gap"] > 0]
        if len(gaps):
            self.restart(events, [end_s for end_s in ends_s if end_s >= gaps[-1]])
            return
        rows, start = np.concatenate([self._open, _generated(events)]), 0
        for end in np.searchsorted(rows["time_s"], ends_s, side="right").tolist():
            if self._whole and end > start:
                yield ObservedIteration.of(rows[start:end])
            self._whole, start = True, end
        self._open = rows[start:][-MOST_OPEN:]


def _longest_pause_and_rise(window: NDArray[Any]) -> tuple[int, int]:
    """Return the index after the longest pause, and the index after the largest rise of ids."""
    pauses, rises = np.diff(window["time_s"]), np.diff(window["gradient"].astype(np.int64))
    return 1 + int(np.argmax(pauses)), 1 + int(np.argmax(rises))


def _fall(ids: NDArray[Any]) -> bool:
    """Return True if ids are in forward order: `ids`, given in order of generation, fall except within steps."""
    if ids[0] == ids[-1]:
        return bool(ids.min() == ids.max())
    return bool(np.corrcoef(np.arange(len(ids)), ids)[0, 1] < FORWARD_IDS)
