"""FIFO, or wait-free back-propagation: gradients go in order of arrival, as soon as they are there."""

from __future__ import annotations

from prophet.core.network import Network
from prophet.core.plan import Plan
from prophet.core.profile import Profile


class Fifo:
    """What BytePS does by itself, through Prophet's queue."""

    name = "fifo"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return Plan(policy=self.name)
