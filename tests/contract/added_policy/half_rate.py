"""A policy as somebody might add it, with an option of each kind and a variant."""

from __future__ import annotations

from dataclasses import dataclass

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition, option


@dataclass(frozen=True)
class Options:
    """Options of it."""

    buffer_bytes: int = option(2_000_000, "the buffer", unit="bytes", least=1)
    share: float = option(0.5, "of the buffer that is in flight", least=0.01)
    both_ways: bool = option(False, "whether pulls are limited too")


class HalfRate:
    """Order of arrival with a credit."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        limited = QueuePlan(credit=int(self._options.buffer_bytes * self._options.share))
        return Plan(push=limited, pull=limited if self._options.both_ways else QueuePlan(), policy=self.name)


POLICIES = {
    "half-rate": Definition(
        "half of the buffer", lambda options, partition_bytes: HalfRate("half-rate", options), Options
    ),
    "half-rate-late": Definition(
        "half of the buffer, later", lambda options, partition_bytes: HalfRate("half-rate-late", options), Options
    ),
}
