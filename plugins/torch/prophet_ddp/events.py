"""Events of blocks for the profiler: the records of prophet_scheduler/core/events.py, written by all-reduces.

Rule of this file: the log between the threads that write and the one that learns. Times are seconds of the steady
clock, sizes bytes. An all-reduce is a push and its pull in one: it starts as a push and ends as both. In two phases
(phases.py) it is a push, which takes as long as an all-reduce of half the bytes, and later a pull.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import EVENT_DTYPE, MOST_FORWARDS, EventKind, QueueKind
from prophet_scheduler.forks import free_in_forks

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Phase(enum.IntEnum):
    """Part of an all-reduce that an operation carries out."""

    BOTH = 0
    REDUCE = 1
    GATHER = 2


MOST_EVENTS = 1 << 20
_ROUND_END = 255
"""Kind of a mark between events: the end of a round."""
_FIELDS = 5
"""Numbers of one kept event: time, id, bytes, kind and phase. The list holds them one after another, since numpy reads
that several times faster than rows, and an iteration has a hundred events or more."""


class EventLog:
    """Events since the last `drain`. A log that is not `open` keeps nothing.

    The training thread writes, and takes no lock: Python appends numbers to a list, and removes the first ones, in one
    step each.
    """

    def __init__(self, open: bool) -> None:
        self._open = open
        self._numbers: list[float] = []
        self._forward_ends: deque[float] = deque(maxlen=MOST_FORWARDS)
        self.round_ends: list[float] = []
        """Ends of rounds, in order, up to the newest drained event: all their events have been drained."""
        self._lock = free_in_forks(threading.Lock())
        self._lost = 0
        self._lost_before = 0
        """Number of events missing between the last drained ones and the next."""

    def added(self, id: int, size_bytes: int, now: float) -> None:
        """Record that the block is complete."""
        self._write((now, id, size_bytes, EventKind.ADD, Phase.BOTH))

    def started(self, id: int, size_bytes: int, now: float, phase: Phase = Phase.BOTH) -> None:
        self._write((now, id, size_bytes, EventKind.START, phase))

    def finished(self, id: int, size_bytes: int, now: float, phase: Phase = Phase.BOTH) -> None:
        self._write((now, id, size_bytes, EventKind.FINISH, phase))

    def forward_ended(self, now: float) -> None:
        """Record the end of a forward pass whose backward pass makes averaged gradients."""
        if self._open:
            self._forward_ends.append(now)

    def round_ended(self, now: float) -> None:
        """Record the end of a round: all its blocks were added."""
        self._write((now, 0, 0, _ROUND_END, Phase.BOTH))

    def close(self) -> None:
        """Stop recording: nobody drains the log any more."""
        self._open = False
        self._numbers.clear()
        self._forward_ends.clear()

    def reopen(self) -> None:
        """Start recording again: somebody drains the log."""
        self._numbers.clear()  # what was written while it was being closed
        self._forward_ends.clear()
        self._open = True

    def drain(self) -> NDArray[Any]:
        """Return all events so far (EVENT_DTYPE), in order of time."""
        with self._lock:
            gap, self._lost_before, self._lost = self._lost_before, self._lost, 0
        count = len(self._numbers)
        numbers = np.array(self._numbers[:count], np.float64).reshape(-1, _FIELDS)
        del self._numbers[:count]
        numbers = numbers[np.argsort(numbers[:, 0], kind="stable")]
        ends = numbers[:, 3] == _ROUND_END
        self.round_ends = numbers[ends, 0].tolist()
        events = _events_of(numbers[~ends])
        if gap and len(events):
            events["gap"][0] = gap
        elif gap:
            with self._lock:
                self._lost_before += gap
        return events

    def drain_forward_ends(self) -> list[float]:
        """Return the times at which forward passes ended, in order. Call it after `drain`, or some may be missing."""
        return [self._forward_ends.popleft() for _ in range(len(self._forward_ends))]

    def _write(self, event: tuple[float, int, int, int, int]) -> None:
        if not self._open:
            return
        if len(self._numbers) < MOST_EVENTS * _FIELDS:
            self._numbers.extend(event)
        else:
            with self._lock:
                self._lost += 1


def _events_of(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return the events of rows of _FIELDS. The end of an all-reduce becomes two: that of a push, and of its pull."""
    kinds, phases = numbers[:, 3].astype(np.uint8), numbers[:, 4]
    times = np.where((kinds == EventKind.FINISH) & (phases == Phase.BOTH), 2, 1)
    events = np.zeros(times.sum(), EVENT_DTYPE)
    for place, field in enumerate(("time_s", "gradient", "bytes", "kind")):
        events[field] = np.repeat(numbers[:, place], times)
    events["queue"] = np.repeat(np.where(phases == Phase.GATHER, QueueKind.PULL, QueueKind.PUSH), times)
    events["queue"][np.cumsum(times)[times == 2] - 1] = QueueKind.PULL
    return events
