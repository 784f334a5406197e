"""The interface of a policy, which turns learned values into a plan.

Rule of this file: the interface only. The policies are in policies/, one file per system.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile


class Policy(Protocol):
    """Maker of plans from learned values. It uses no clock, thread or socket."""

    name: str

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan for a job. `profile` and `network` are None until they are known.

        `jitter_s` is the variation of generation times between iterations, in seconds.
        """
        ...


@runtime_checkable
class CuttingPolicy(Policy, Protocol):
    """A policy that chooses where to cut each group's tensor, for engines that can cut a tensor anywhere."""

    def segments(self, profile: Profile, network: Network) -> Mapping[int, tuple[int, ...]]:
        """Return the segment sizes of each group's tensor, in bytes and in sending order, by the plan's groups."""
        ...
