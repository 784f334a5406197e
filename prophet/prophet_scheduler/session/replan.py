"""Comparison of two plans, to decide if a swap is worth it.

Rule of this file: pure; it sees only the two plans.
"""

from __future__ import annotations

from prophet_scheduler.core.plan import Plan

MATERIAL_CHANGE = 0.10
"""Minimum relative change of a plan's inputs that is worth a swap."""
MATERIAL_SHIFT_S = 0.002
"""Minimum shift of a deadline that is worth a swap, about the error of predictions. A new choice needs as much."""


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
