"""The values that go round the scheduling ring: profiles, networks, plans and events.

Rule of this file: immutable values and their validation, nothing that has a clock, a thread, a file
or a socket. Units are bytes, seconds and bytes per second throughout. Index 0 is always the
gradient of the first layer: the most urgent one, and the last one generated.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet.errors import UserError

PROFILE_SCHEMA = 1


class EventKind(enum.IntEnum):
    """What happened to a task in a queue."""

    ADD = 0
    START = 1
    FINISH = 2


class QueueKind(enum.IntEnum):
    """Which of BytePS's two network queues an event or a plan is about."""

    PUSH = 0
    PULL = 1


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
"""One record of the hook's event log; mirrors `struct Event` in prophet/native/events.h (24 bytes)."""


def unbroken(events: NDArray[Any]) -> Iterator[tuple[bool, NDArray[Any]]]:
    """`events` (EVENT_DTYPE) in pieces without a gap, each with whether one comes before it.

    What began before a gap is unknown after it: its finish may be lost, or never come.
    """
    gaps = np.flatnonzero(events["gap"]).tolist()
    for start, end in itertools.pairwise(sorted({0, *gaps, len(events)})):
        yield bool(events["gap"][start]), events[start:end]


UNPROFILED_GRADIENT = 0x80000000
"""Bit set in the gradient id of a tensor that is not a gradient of the model (a broadcast, say)."""


@dataclass(frozen=True)
class GradientProfile:
    """One gradient: `size_bytes`, `generation_s` after backward began, `forward_s` of its layer."""

    name: str
    size_bytes: int
    generation_s: float
    forward_s: float = 0.0


@dataclass(frozen=True)
class Profile:
    """A job's gradients in priority order, with the stepwise generation times (paper, section 2.2).

    `gradients[0]` is the most urgent and generated last, so `generation_s` never rises with the
    index. Raises UserError where that does not hold, or where a size or a time is impossible.
    """

    name: str
    gradients: tuple[GradientProfile, ...]
    ids: tuple[int, ...] = ()
    """Gradient ids as the hook's events give them, one a gradient; empty means 0, 1, 2, ..."""

    def __post_init__(self) -> None:
        where = f"profile {self.name!r}"
        if not self.gradients:
            raise UserError(f"{where}: 'gradients' is empty; record a profile of at least one gradient")
        previous = math.inf
        for index, gradient in enumerate(self.gradients):
            at = f"{where}: gradients[{index}] ({gradient.name})"
            if gradient.size_bytes <= 0:
                raise UserError(f"{at}: 'bytes' is {gradient.size_bytes}; it must be above 0")
            for key in ("generation_s", "forward_s"):
                value = getattr(gradient, key)
                if not math.isfinite(value) or value < 0:
                    raise UserError(f"{at}: '{key}' is {value}; it must be 0 or more seconds")
            if gradient.generation_s > previous:
                raise UserError(
                    f"{at}: 'generation_s' is {gradient.generation_s}, above that of the more urgent gradient before "
                    "it; list gradients from the first layer (generated last) to the last layer"
                )
            previous = gradient.generation_s
        if self.ids and len(self.ids) != len(self.gradients):
            raise UserError(f"{where}: {len(self.ids)} ids for {len(self.gradients)} gradients")

    @property
    def gradient_ids(self) -> tuple[int, ...]:
        return self.ids or tuple(range(len(self.gradients)))

    @property
    def size_by_id(self) -> dict[int, int]:
        """Bytes of each gradient id."""
        return {id_: g.size_bytes for id_, g in zip(self.gradient_ids, self.gradients, strict=True)}

    @property
    def generation_by_id(self) -> dict[int, float]:
        """Seconds after backward began, of each gradient id."""
        return {id_: g.generation_s for id_, g in zip(self.gradient_ids, self.gradients, strict=True)}

    @property
    def total_bytes(self) -> int:
        return sum(g.size_bytes for g in self.gradients)

    @property
    def backward_s(self) -> float:
        """When gradient 0 is generated, the end of the backward pass; the paper's c(0)."""
        return self.gradients[0].generation_s

    @property
    def forward_s(self) -> float:
        return sum(g.forward_s for g in self.gradients)


@dataclass(frozen=True)
class Network:
    """What a worker's link does: `E(s) = overhead_s + s / bandwidth` seconds for s bytes.

    `bandwidth` is the available rate in bytes per second, `ack_delay_s` the time from the last byte
    of a push leaving to its acknowledgement being seen.
    """

    bandwidth: float
    overhead_s: float = 0.0
    ack_delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise UserError(f"bandwidth is {self.bandwidth} bytes per second; it must be above 0")
        if self.overhead_s < 0 or self.ack_delay_s < 0:
            raise UserError("overhead_s and ack_delay_s must be 0 or more seconds")

    def transfer_s(self, size_bytes: float) -> float:
        """The paper's E(i) with Eq. 10's f fitted as a fixed overhead and a rate."""
        return self.overhead_s + size_bytes / self.bandwidth


@dataclass(frozen=True)
class Deadline:
    """A more urgent gradient is predicted: `rank` is its rank, `time_s` when, after backward began."""

    time_s: float
    rank: int


@dataclass(frozen=True)
class QueuePlan:
    """The four knobs for one queue. Every system in the literature is a setting of them.

    `order`: rank of each gradient id, 0 first; None means arrival order.
    `credit`: bytes allowed in flight; None means unlimited. A task always goes when nothing is in
    flight, so a credit of 1 means one slice at a time.
    `deadlines`: predicted arrivals that a less urgent transfer must not run past.
    `groups`: group of each gradient id; a group travels as one, once every member is there.
    """

    order: Mapping[int, int] | None = None
    credit: int | None = None
    deadlines: tuple[Deadline, ...] = ()
    groups: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What goes on the wire next: a value, swapped whole. `Plan()` is arrival order, unlimited.

    `generation_s` and `size_bytes` (per gradient id) and `network` are what the queue needs to turn
    a deadline into a decision: when the iteration began, and how long a transfer takes. A plan with groups is
    taken up when the next iteration begins, which the generation times tell.
    `deadline_slack_s` is how late a prediction may come true before the queue stops waiting for it.
    """

    push: QueuePlan = field(default_factory=QueuePlan)
    pull: QueuePlan = field(default_factory=QueuePlan)
    generation_s: Mapping[int, float] = field(default_factory=dict)
    size_bytes: Mapping[int, int] = field(default_factory=dict)
    network: Network | None = None
    deadline_slack_s: float = 0.0
    policy: str = "fifo"
