"""A policy: from learned values to a plan.

Rule of this file: the interface alone; the policies are in policies/, one file a system.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile


class Policy(Protocol):
    """Maker of plans from learned values. It knows no clock, thread or socket."""

    name: str

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan for a job; `profile` and `network` are None until they are known.

        `jitter_s` is how far generation times scatter between iterations, in seconds.
        """
        ...


@runtime_checkable
class CuttingPolicy(Policy, Protocol):
    """A policy that chooses the places at which an engine cuts its groups, if the engine can cut a tensor anywhere."""

    def segments(self, profile: Profile, network: Network) -> Mapping[int, tuple[int, ...]]:
        """Return, by group of the plan, the bytes of the segments of its tensor, in the order in which they go."""
        ...
