"""ByteScheduler (Peng et al., SOSP 2019): forward order with a fixed credit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.policies import Definition, option

if TYPE_CHECKING:
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class ByteSchedulerOptions:
    """Options of ByteScheduler."""

    credit_bytes: int = option(4_000_000, "bytes in flight", unit="bytes", least=1)


class ByteScheduler:
    """Priority with a window: `credit_bytes` may be in flight, so that the wire does not go idle.

    The paper tunes credit and partition size by Bayesian optimization over minutes of training. Here both are fixed
    settings, and a config can try several (configs/sweep-bytescheduler.yaml).
    """

    name = "bytescheduler"

    def __init__(self, credit_bytes: int) -> None:
        self._credit_bytes = credit_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = profile.rank_by_id if profile else {}
        return Plan(
            push=QueuePlan(order=order, credit=self._credit_bytes), pull=QueuePlan(order=order), policy=self.name
        )


POLICIES = {
    "bytescheduler": Definition(
        "forward order with a fixed credit",
        lambda options, partition_bytes: ByteScheduler(options.credit_bytes),
        ByteSchedulerOptions,
        page="policies/baselines.md",
        servers_only="it only sets the bytes in flight, which an engine of collectives limits by itself; use p3",
    )
}
