"""Parts of plans that several policies share: groups sent one after another, and generation times for deadlines.

Rule of this file: pure functions of a profile; each policy decides its own groups and deadlines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prophet_scheduler.core.plan import Plan, QueuePlan

if TYPE_CHECKING:
    from prophet_scheduler.core.profile import Profile

ONE_TASK = 1
"""Credit of one task at a time, like the collectives of one communicator."""
LEAST_SLACK_S = 0.001
"""Minimum slack of a deadline: without it, the queue's timer and a correct prediction are due at the same instant."""


def grouped_plan(
    policy: str, profile: Profile | None, merge: Callable[[Sequence[float], Sequence[int]], Sequence[Sequence[int]]]
) -> Plan:
    """Return a plan that sends groups of gradients in arrival order, one after another; without a profile, gradients.

    `merge` returns the groups, each as positions in the profile, from generation times (seconds) and sizes (bytes) in
    forward order.
    """
    if profile is None:
        return Plan(push=QueuePlan(credit=ONE_TASK), policy=policy)
    ids, gradients = profile.gradient_ids, profile.gradients
    groups = merge([gradient.generation_s for gradient in gradients], [gradient.size_bytes for gradient in gradients])
    group_of = {ids[position]: number for number, members in enumerate(groups) for position in members}
    return Plan(
        push=QueuePlan(credit=ONE_TASK, groups=group_of),
        generation_s=profile.generation_by_id,
        size_bytes=profile.size_by_id,
        policy=policy,
    )


def distinct_times(profile: Profile) -> dict[int, float]:
    """Return generation times in seconds by gradient id, with equal times moved a rounding error apart.

    So the latest gradient to arrive shows which others have arrived, and the first of a step does not stand for all.
    """
    times_s: dict[int, float] = {}
    before = -math.inf
    for gradient, generated in reversed(list(zip(profile.gradient_ids, profile.gradients, strict=True))):
        before = max(generated.generation_s, math.nextafter(before, math.inf))
        times_s[gradient] = before
    return times_s
