"""Horovod: gradients that are ready at a tick are fused into buffers of a fixed size.

Rule of this file: which gradients share a buffer, as Horovod decides it, and the plan for that.
docs/policies/baselines.md has the mapping, and the parts of Horovod that it leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition
from prophet_scheduler.policies.algorithms.plans import grouped_plan

HOROVOD_FUSION_BYTES = 64 * 1024 * 1024
"""HOROVOD_FUSION_THRESHOLD, until version 0.21 doubled it."""
HOROVOD_CYCLE_S = 0.005
"""HOROVOD_CYCLE_TIME, until version 0.21 made it 1 ms."""


class Horovod:
    """Horovod's tensor fusion (Sergeev and Del Balso, arXiv 1802.05799)."""

    name = "horovod"

    def __init__(self, fusion_bytes: int = HOROVOD_FUSION_BYTES, cycle_s: float = HOROVOD_CYCLE_S) -> None:
        if fusion_bytes < 0:
            raise UserError(f"horovod: fusion_bytes is {fusion_bytes}; it must be 0 (no fusion) or more")
        if not (math.isfinite(cycle_s) and cycle_s > 0):
            raise UserError(f"horovod: cycle_s is {cycle_s}; it must be above 0 seconds")
        self._fusion_bytes = fusion_bytes
        self._cycle_s = cycle_s

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        limits = self._fusion_bytes, self._cycle_s
        return grouped_plan(self.name, profile, lambda times_s, sizes: fused_by_cycles(times_s, sizes, *limits))


def fused_by_cycles(
    generation_s: Sequence[float],
    sizes: Sequence[int],
    fusion_bytes: int = HOROVOD_FUSION_BYTES,
    cycle_s: float = HOROVOD_CYCLE_S,
) -> list[list[int]]:
    """Return Horovod's buffers in sending order, each as positions in generation order (falling).

    Cycles are `cycle_s` apart, from the start of backward. A cycle fuses the ready gradients in generation order. A
    gradient that would make the buffer exceed `fusion_bytes` starts another buffer; one above that size goes alone
    (Controller::FuseResponses in horovod/common/controller.cc, which looks ahead for gradients of the same type; here
    all have one type). `generation_s` (seconds) and `sizes` (bytes) are in forward order.
    """
    ready_at: dict[int, list[int]] = {}
    for position in reversed(range(len(sizes))):
        # Times are sums of floating-point shares: a time that differs from a tick only in the last bits is that tick.
        tick = math.ceil(round(generation_s[position] / cycle_s, 9))
        ready_at.setdefault(tick, []).append(position)
    groups = []
    for tick in sorted(ready_at):
        group: list[int] = []
        taken = 0
        for position in ready_at[tick]:
            if group and taken + sizes[position] > fusion_bytes:
                groups.append(group)
                group, taken = [], 0
            group.append(position)
            taken += sizes[position]
        groups.append(group)
    return groups


POLICIES = {
    "horovod": Definition(
        "gradients merged as in Horovod",
        lambda options, partition_bytes: Horovod(),
        page="policies/baselines.md",
        groups=True,
        waits=True,
    )
}
