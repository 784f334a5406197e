"""The plan of engines that fuse gradients: groups sent in arrival order, one after another.

Rule of this file: shared code of such policies; each policy decides its own groups.
"""

from __future__ import annotations

from collections.abc import Sequence

from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile

ONE_TASK = 1
"""Credit of one message at a time, like the collectives of one communicator."""


def grouped_plan(profile: Profile, groups: Sequence[Sequence[int]], policy: str) -> Plan:
    """Return a plan that sends `groups` (of positions in the profile) in arrival order, one after another."""
    ids = profile.gradient_ids
    group_of = {ids[position]: number for number, members in enumerate(groups) for position in members}
    return Plan(
        push=QueuePlan(credit=ONE_TASK, groups=group_of),
        generation_s=profile.generation_by_id,
        size_bytes=profile.size_by_id,
        policy=policy,
    )
