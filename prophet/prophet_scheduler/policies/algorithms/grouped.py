"""The plan of engines that fuse gradients: groups that leave in order of arrival, one after another.

Rule of this file: what such policies share; which gradients make a group is each policy's own.
"""

from __future__ import annotations

from collections.abc import Sequence

from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile

ONE_TASK = 1
"""The credit: one message at a time, as collectives of one communicator are."""


def grouped_plan(profile: Profile, groups: Sequence[Sequence[int]], policy: str) -> Plan:
    """Groups (of positions in the profile) that leave in order of arrival, one after another."""
    ids = profile.gradient_ids
    group_of = {ids[position]: number for number, members in enumerate(groups) for position in members}
    return Plan(
        push=QueuePlan(credit=ONE_TASK, groups=group_of),
        generation_s=profile.generation_by_id,
        size_bytes=profile.size_by_id,
        policy=policy,
    )
