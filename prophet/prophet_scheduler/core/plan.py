"""A plan: the order and limits of transfers, as an immutable value.

Rule of this file: the knobs, and how much two plans differ. Policies make plans, the queue follows them. Units are
bytes and seconds.
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
"""Minimum shift of a deadline that is worth a swap: about the prediction error. New predictions need as much change."""


@dataclass(frozen=True)
class Deadline:
    """Prediction that a gradient of this `rank` is generated `time_s` after backward began."""

    time_s: float
    rank: int


@dataclass(frozen=True)
class QueuePlan:
    """The four knobs of one queue. Every system in the literature corresponds to a setting of them.

    `order`: rank of each gradient id, 0 first; None means arrival order. An id without an entry is its own rank. The
    front end gives ids in forward order, so an empty order is forward order before a profile is known.
    `credit`: bytes allowed in flight; None means unlimited. A task may always start when nothing is in flight, so a
    credit of 1 means one slice at a time.
    `deadlines`: predicted arrivals of gradients, past which no less urgent transfer may run.
    `groups`: group of each gradient id. A group travels as one, once all its members are ready.
    """

    order: Mapping[int, int] | None = None
    credit: int | None = None
    deadlines: tuple[Deadline, ...] = ()
    groups: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Order and limits of transfers, replaced only as a whole. `Plan()` is arrival order without limits.

    From `generation_s` and `size_bytes` (per gradient id) and `network`, the queue derives what it needs to apply
    deadlines: when the iteration began, and how long a transfer takes. A plan with groups takes effect when the next
    iteration begins, which the queue detects from the generation times.
    `deadline_slack_s` is how late a predicted gradient may be before the queue stops waiting for it.
    `cut` is the cut that this worker's policy wants, None to keep the current one. The queue ignores it: a cut takes
    effect once all workers have agreed on it, and the plan must make sense under any cut.
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
    """Return True if `new` differs enough from `old` to be worth a swap."""

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
