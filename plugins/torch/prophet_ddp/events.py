"""What happened to blocks, as the profiler reads it: the record of prophet/core/events.py, written by all-reduces.

What belongs here: the log between the threads that write and the one that learns. Times are seconds of the steady
clock, sizes bytes. An all-reduce is a push and its pull at once: it starts as the one and ends as both.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet.core.events import EVENT_DTYPE, EventKind, QueueKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_EVENTS = 1 << 20


class EventLog:
    """Events since the last `drain`. One that is not `open` keeps nothing."""

    def __init__(self, open: bool) -> None:
        self._open = open
        self._lock = threading.Lock()
        self._rows: list[tuple[float, int, int, int, int, int, int]] = []
        self._lost = 0
        self._lost_before = 0
        """Events that are missing between those that were drained last and the next."""

    def added(self, id: int, size_bytes: int, now: float) -> None:
        """The block is complete."""
        self._write(now, id, size_bytes, QueueKind.PUSH, EventKind.ADD)

    def started(self, id: int, size_bytes: int, now: float) -> None:
        self._write(now, id, size_bytes, QueueKind.PUSH, EventKind.START)

    def finished(self, id: int, size_bytes: int, now: float) -> None:
        self._write(now, id, size_bytes, QueueKind.PUSH, EventKind.FINISH)
        self._write(now, id, size_bytes, QueueKind.PULL, EventKind.FINISH)

    def close(self) -> None:
        """Nobody will drain it any more."""
        with self._lock:
            self._open = False
            self._rows = []

    def reopen(self) -> None:
        """Somebody will."""
        with self._lock:
            self._open = True

    def drain(self) -> NDArray[Any]:
        """All events so far (EVENT_DTYPE), in order of time."""
        with self._lock:
            rows, self._rows = self._rows, []
            gap, self._lost_before, self._lost = self._lost_before, self._lost, 0
        events = np.array(rows, EVENT_DTYPE)
        in_order: NDArray[Any] = events[np.argsort(events["time_s"], kind="stable")]
        if gap and len(in_order):
            in_order["gap"][0] = gap
        return in_order

    def _write(self, now: float, id: int, size_bytes: int, queue: QueueKind, kind: EventKind) -> None:
        if not self._open:
            return
        with self._lock:
            if not self._open:
                return
            if len(self._rows) < MOST_EVENTS:
                self._rows.append((now, id, size_bytes, 0, queue, kind, 0))
            else:
                self._lost += 1
