"""P3 (Jayaraman et al., MLSys 2019): slices in forward order, one at a time."""

from __future__ import annotations

from prophet.core.network import Network
from prophet.core.plan import Plan, QueuePlan
from prophet.core.profile import Profile
from prophet.policies.order import forward_order


class P3:
    """Priority-based parameter propagation: a blocking send of one slice, always the most urgent."""

    name = "p3"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = forward_order(profile)
        return Plan(push=QueuePlan(order=order, credit=1), pull=QueuePlan(order=order), policy=self.name)
