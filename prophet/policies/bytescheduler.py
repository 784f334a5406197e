"""ByteScheduler (Peng et al., SOSP 2019): forward order with a fixed credit."""

from __future__ import annotations

from prophet.core.network import Network
from prophet.core.plan import Plan, QueuePlan
from prophet.core.profile import Profile
from prophet.policies.order import forward_order


class ByteScheduler:
    """Priority with a window: `credit_bytes` may be in flight, so that the wire does not run dry.

    The paper tunes credit and partition size by Bayesian optimisation over minutes of training; here
    both are given, and the comparison uses the best of a sweep, which is what tuning could reach.
    """

    name = "bytescheduler"

    def __init__(self, credit_bytes: int) -> None:
        self._credit_bytes = credit_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = forward_order(profile)
        return Plan(
            push=QueuePlan(order=order, credit=self._credit_bytes), pull=QueuePlan(order=order), policy=self.name
        )
