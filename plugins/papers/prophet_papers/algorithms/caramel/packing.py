"""Times at which batches travel: in the backward pass, in the next forward pass, or beyond both (Caramel, section 4.3).

Rule of this file: the greedy packing, from batches to times. One transfer has the network at a time and is not cut.

The backward pass is [0, backward_s]; the forward pass is [0, forward_s] on its own clock. Between them is a gap without
compute, 0 unless the network is too slow. The paper's steps:

1. Sort batches by size, largest first.
2. Put each alongside compute: in the backward pass, any time after it is ready; if that is not feasible, in the
   forward pass, any time before it is read.
3. Put each remaining batch outside compute: after the end of the backward pass or before the start of the forward
   pass, whichever lengthens the gap less.

Choices where the paper is not explicit: Step 2 takes the earliest feasible time in the backward pass and the latest in
the forward pass, which keeps the end of the former and the start of the latter free for step 3. Equal batches keep
their order. A tie in step 3 goes to the backward pass. A batch of step 3 uses the free time at that end of the pass,
and its remainder adds to the gap; since transfers are not cut, only the first batch at each end can do so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prophet_papers.algorithms.caramel.batching import Batch
from prophet_scheduler.core.enums import StrEnum
from prophet_scheduler.core.network import Network

ROUNDING_S = 1e-12
"""Tolerance when comparing sums of seconds."""


class Place(StrEnum):
    """Pass during which a batch travels; the last two places extend into the gap."""

    BACKWARD = "backward"
    FORWARD = "forward"
    AFTER_BACKWARD = "after backward"
    BEFORE_FORWARD = "before forward"


@dataclass(frozen=True)
class PackedSlot:
    """Slot in which `batch` (an index) has the network, from `start_s` to `end_s` since backward began."""

    batch: int
    place: Place
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Packing:
    """Slots by time. `gap_s` is how long compute stalls between the two passes."""

    slots: tuple[PackedSlot, ...]
    backward_s: float
    forward_s: float
    gap_s: float

    @property
    def iteration_s(self) -> float:
        return self.backward_s + self.forward_s + self.gap_s


def pack(
    batches: Sequence[Batch], backward_s: float, forward_s: float, network: Network, forward: bool = True
) -> Packing:
    """Return a slot for every batch, which starts no earlier than it is generated and ends no later than it is read.

    `forward` False restricts transfers to the backward pass and the gap after it, like the systems that the paper
    compares with. Batches that do not fit lengthen the gap.
    """
    takes = [network.transfer_s(batch.size_bytes) for batch in batches]
    by_size = sorted(range(len(batches)), key=lambda index: -batches[index].size_bytes)
    before, after = _Free(backward_s), _Free(forward_s)
    starts: dict[int, tuple[Place, float]] = {}
    left = []
    for index in by_size:
        start = before.earliest(batches[index].generated_s, takes[index])
        if start is not None:
            starts[index] = Place.BACKWARD, start
            continue
        start = after.latest(batches[index].read_s, takes[index]) if forward else None
        if start is not None:
            starts[index] = Place.FORWARD, start
        else:
            left.append(index)
    # The remaining batches go after the last transfer of backward, or before the first of forward. Parts beyond the
    # passes are in the gap.
    tail, head = before.last_busy, after.first_busy
    overrun = underrun = 0.0
    for index in left:
        late_start = max(tail, batches[index].generated_s)
        late = max(0.0, late_start + takes[index] - backward_s) - overrun
        early_end = min(head, batches[index].read_s)
        early = max(0.0, takes[index] - early_end) - underrun
        if not forward or late <= early + ROUNDING_S:
            starts[index] = Place.AFTER_BACKWARD, late_start
            tail = late_start + takes[index]
            overrun += late
        else:
            starts[index] = Place.BEFORE_FORWARD, early_end - takes[index]
            head = early_end - takes[index]
            underrun += early
    gap = overrun + underrun
    slots = []
    for index, (place, start) in starts.items():
        if place in (Place.FORWARD, Place.BEFORE_FORWARD):
            start += backward_s + gap
        slots.append(PackedSlot(index, place, start, start + takes[index]))
    slots.sort(key=lambda slot: (slot.start_s, slot.end_s))
    return Packing(tuple(slots), backward_s, forward_s, gap)


class _Free:
    """Free parts of [0, length_s], as sorted intervals."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._parts = [(0.0, length_s)]

    @property
    def last_busy(self) -> float:
        """Time after which all is free."""
        start, end = self._parts[-1] if self._parts else (0.0, 0.0)
        return start if end == self._length_s else self._length_s

    @property
    def first_busy(self) -> float:
        """Time before which all is free."""
        start, end = self._parts[0] if self._parts else (0.0, 0.0)
        return end if start == 0.0 else 0.0

    def earliest(self, since_s: float, takes_s: float) -> float | None:
        """Reserve the earliest `takes_s` after `since_s`, and return its start; None if there is no such time."""
        for place, (start, end) in enumerate(self._parts):
            if max(start, since_s) + takes_s <= end + ROUNDING_S:
                return self._take(place, max(start, since_s), takes_s)
        return None

    def latest(self, until_s: float, takes_s: float) -> float | None:
        """Reserve the latest `takes_s` before `until_s`, and return its start; None if there is no such time."""
        for place, (start, end) in reversed(list(enumerate(self._parts))):
            if min(end, until_s) - takes_s >= start - ROUNDING_S:
                return self._take(place, min(end, until_s) - takes_s, takes_s)
        return None

    def _take(self, place: int, start: float, takes_s: float) -> float:
        low, high = self._parts[place]
        self._parts[place : place + 1] = [(a, b) for a, b in ((low, start), (start + takes_s, high)) if b > a]
        return start
