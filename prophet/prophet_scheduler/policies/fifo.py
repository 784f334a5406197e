"""FIFO, or wait-free back-propagation: gradients are sent in arrival order, as soon as they are ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prophet_scheduler.core.plan import Plan
from prophet_scheduler.policies import Definition

if TYPE_CHECKING:
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile


class Fifo:
    """BytePS's own order, through Prophet's queue."""

    name = "fifo"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return Plan(policy=self.name)


POLICIES = {
    "fifo": Definition(
        "order of arrival, as BytePS does, through the hook", lambda options, partition_bytes: Fifo(), waits=True
    )
}
