"""Events of tasks and queues, written by the hook and the simulator and read by the profiler.

Rule of this file: the layout of an event, the meaning of its ids, and how to read events with gaps. No file and no
clock. Times are seconds of a steady clock, sizes bytes.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.cut import UNIT_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray


class EventKind(enum.IntEnum):
    """Events of a task in a queue."""

    ADD = 0
    START = 1
    FINISH = 2


class QueueEvent(enum.IntEnum):
    """Events of the queue itself, for replays of its decisions. The kinds continue those of EventKind.

    Such an event concerns both lanes (`queue` is BOTH_LANES), and its `gradient` is the number of the current plan.
    """

    PLAN = 3
    """This plan takes effect."""
    FORGOTTEN = 4
    """All tasks were dropped, because their engine is gone. The next event has a gap of 1."""
    EMPTY = 5
    """The queue is empty: nothing waits and nothing is in flight. At most one such event per drain of the log."""


class QueueKind(enum.IntEnum):
    """BytePS's two network queues, for events and plans."""

    PUSH = 0
    PULL = 1


BOTH_LANES = 2
"""`queue` of an event that concerns both lanes."""
NO_PLAN = 0xFFFFFFFF
"""Plan number for no plan: arrival order without limits."""

EVENT_VERSION = 2
"""Version of the layout below and of the kinds; version 1 had no QueueEvent."""
EVENT_DTYPE = np.dtype(
    [
        ("time_s", "<f8"),  # steady clock
        ("gradient", "<u4"),
        ("bytes", "<u4"),
        ("partition", "<u2"),
        ("queue", "u1"),
        ("kind", "u1"),
        ("gap", "<u4"),  # not 0 if events before this one are lost
    ]
)
"""Layout of an event; mirrors `struct Event` in core/native/events.h (24 bytes)."""


MOST_FORWARDS = 1000
"""Maximum number of forward-pass ends that are kept: far more than occur between two drains."""
DRAIN_S = 1.0
"""Seconds between two drains of the event log: long enough to cost nothing."""
SEEKING_S = 0.25
"""Seconds between two drains while a job searches for a better choice."""


def unbroken(events: NDArray[Any]) -> Iterator[tuple[bool, NDArray[Any]]]:
    """Yield `events` (EVENT_DTYPE) in pieces without gaps, each with True if a gap precedes it.

    Tasks that began before a gap are unknown after it: their finish may be lost, or never happen.
    """
    gaps = np.flatnonzero(events["gap"]).tolist()
    for start, end in itertools.pairwise(sorted({0, *gaps, len(events)})):
        yield bool(events["gap"][start]), events[start:end]


UNPROFILED_GRADIENT = 0x80000000
"""Bit set in the gradient id of a tensor that is not a gradient of the model, such as a broadcast."""


def name_of(gradient: int, arena: bool) -> str:
    """Return the name of a block or gradient. With `arena`, ids are places in the arena; otherwise gradient numbers."""
    return f"block at {gradient * UNIT_BYTES / 2**20:.2f} MiB" if arena else f"gradient {gradient}"
