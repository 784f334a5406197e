"""The record of every task: the hook and the simulator write it, and the profiler reads it.

Rule of this file: the layout of an event, what its ids mean, and how a record with gaps is read; no file and no clock.
Times are seconds of a steady clock, sizes bytes.
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
    """Events of the queue itself, for replays of its decisions; the kinds that follow EventKind's.

    Such an event is about both lanes (`queue` is BOTH_LANES), and its `gradient` is the number of the plan in force.
    """

    PLAN = 3
    """This plan holds from here."""
    FORGOTTEN = 4
    """Every task was forgotten, because the engine that had them is gone. The next event has a gap of 1."""
    EMPTY = 5
    """The queue is empty: nothing waits and nothing is in flight. At most one between two drains of the log."""


class QueueKind(enum.IntEnum):
    """BytePS's two network queues, for events and plans."""

    PUSH = 0
    PULL = 1


BOTH_LANES = 2
"""The `queue` of an event that is about both."""
NO_PLAN = 0xFFFFFFFF
"""The number of a plan where there is none: order of arrival without limits."""

EVENT_VERSION = 2
"""Version of the layout and the kinds below; 1 had no QueueEvent."""
EVENT_DTYPE = np.dtype(
    [
        ("time_s", "<f8"),  # steady clock
        ("gradient", "<u4"),
        ("bytes", "<u4"),
        ("partition", "<u2"),
        ("queue", "u1"),
        ("kind", "u1"),
        ("gap", "<u4"),  # other than 0 where events before this one are lost
    ]
)
"""One record of the hook's event log; mirrors `struct Event` in core/native/events.h (24 bytes)."""


MOST_FORWARDS = 1000
"""Maximum ends of forward passes that are kept: far more than come between two looks."""
DRAIN_S = 1.0
"""Seconds between two looks at the events: long enough to cost nothing."""
SEEKING_S = 0.25
"""Seconds between two looks while a job looks for something better."""


def unbroken(events: NDArray[Any]) -> Iterator[tuple[bool, NDArray[Any]]]:
    """`events` (EVENT_DTYPE) in pieces without a gap, each with whether one comes before it.

    What began before a gap is unknown after it: its finish may be lost, or never come.
    """
    gaps = np.flatnonzero(events["gap"]).tolist()
    for start, end in itertools.pairwise(sorted({0, *gaps, len(events)})):
        yield bool(events["gap"][start]), events[start:end]


UNPROFILED_GRADIENT = 0x80000000
"""Bit set in the gradient id of a tensor that is not a gradient of the model (a broadcast, say)."""


def name_of(gradient: int, arena: bool) -> str:
    """Return the block or gradient of an id, in words. `arena`: ids are places in the arena; otherwise they count."""
    return f"block at {gradient * UNIT_BYTES / 2**20:.2f} MiB" if arena else f"gradient {gradient}"
