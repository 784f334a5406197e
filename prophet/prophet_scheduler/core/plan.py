"""A plan: the order and limits of transfers, as a value that is swapped whole.

Rule of this file: the knobs, and how far two settings of them differ; policies make plans, the queue follows them.
Units are bytes and seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prophet_scheduler.core.cut import Cut
    from prophet_scheduler.core.network import Network


MATERIAL_CHANGE = 0.10
"""Minimum relative change of a plan's inputs that is worth a swap."""
MATERIAL_SHIFT_S = 0.002
"""Minimum shift of a deadline that is worth a swap, about the error of predictions. A new choice needs as much."""


@dataclass(frozen=True)
class Deadline:
    """A more urgent gradient is predicted: `rank` is its rank, `time_s` when, after backward began."""

    time_s: float
    rank: int


@dataclass(frozen=True)
class QueuePlan:
    """The four knobs for one queue. Every system in the literature is a setting of them.

    `order`: rank of each gradient id, 0 first; None means arrival order. An id that is not in it is its own rank, since
    the front end gives ids in forward order: an empty order is forward order before a profile is known.
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
    """Order and limits of transfers: a value, swapped whole. `Plan()` is arrival order, unlimited.

    `generation_s` and `size_bytes` (per gradient id) and `network` are what the queue needs to turn
    a deadline into a decision: when the iteration began, and how long a transfer takes. A plan with groups is
    taken up when the next iteration begins, which the generation times tell.
    `deadline_slack_s` is how late a prediction may come true before the queue stops waiting for it.
    `cut` is where this worker's policy would have blocks begin and end, None where it leaves that as it is. It is not
    the queue's: a cut holds once all workers have agreed on it, and the plan must make sense under any.
    """

    push: QueuePlan = field(default_factory=QueuePlan)
    pull: QueuePlan = field(default_factory=QueuePlan)
    generation_s: Mapping[int, float] = field(default_factory=dict)
    size_bytes: Mapping[int, int] = field(default_factory=dict)
    network: Network | None = None
    deadline_slack_s: float = 0.0
    policy: str = "fifo"
    cut: Cut | None = None


def plan_changed(old: Plan, new: Plan) -> bool:
    """Return True if `new` differs from `old` enough to be worth a swap."""

    def moved(a: float | None, b: float | None) -> bool:
        if a is None or b is None:
            return a is not b
        return abs(a - b) > MATERIAL_CHANGE * max(abs(a), abs(b))

    for before, after in ((old.push, new.push), (old.pull, new.pull)):
        if (before.order, before.groups) != (after.order, after.groups) or moved(before.credit, after.credit):
            return True
        if [d.rank for d in before.deadlines] != [d.rank for d in after.deadlines]:
            return True
        pairs = zip(before.deadlines, after.deadlines, strict=True)
        if any(abs(a.time_s - b.time_s) > MATERIAL_SHIFT_S for a, b in pairs):
            return True
    if old.cut != new.cut:
        return True
    rates = [plan.network.bandwidth if plan.network else None for plan in (old, new)]
    return moved(*rates)
