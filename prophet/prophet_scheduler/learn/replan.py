"""When a new plan is worth a swap.

Rule of this file: a comparison of two plans.
"""

from __future__ import annotations

from prophet_scheduler.core.plan import Plan

MATERIAL_CHANGE = 0.10
"""A plan is swapped only for a change of more than a tenth in what it was made from."""
MATERIAL_SHIFT_S = 0.002
"""And for a deadline that moved by more than this, which is about how exact predictions are; nor is a choice made anew
for less."""


def plan_changed(old: Plan, new: Plan) -> bool:
    """Whether `new` differs from `old` enough to be worth a swap."""

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
