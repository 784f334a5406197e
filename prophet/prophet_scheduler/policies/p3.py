"""P3 (Jayaraman et al., MLSys 2019): slices in forward order, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.policies import Definition

if TYPE_CHECKING:
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile


class P3:
    """Priority-based parameter propagation: a blocking send of one slice, always the most urgent."""

    name = "p3"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = profile.rank_by_id if profile else {}
        return Plan(push=QueuePlan(order=order, credit=1), pull=QueuePlan(order=order), policy=self.name)


POLICIES = {"p3": Definition("forward order, one slice at a time", lambda options, partition_bytes: P3())}
