"""Fusion into buffers of a fixed size: PyTorch's DistributedDataParallel and Horovod.

Rule of this file: which gradients share a buffer, as these programs decide it, and the plans for that.
docs/policies/baselines.md has the mapping and what of the programs is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prophet.core.errors import UserError
from prophet.core.network import Network
from prophet.core.plan import Plan, QueuePlan
from prophet.core.profile import Profile
from prophet.policies.mgwfbp import ONE_TASK, grouped_plan

MEBIBYTE = 1024 * 1024

DDP_BUCKET_BYTES = 25 * MEBIBYTE
"""bucket_cap_mb of torch.nn.parallel.DistributedDataParallel."""
DDP_FIRST_BUCKET_BYTES = MEBIBYTE
"""kDefaultFirstBucketBytes: the first bucket is small so that the network gets something to do early."""

HOROVOD_FUSION_BYTES = 64 * MEBIBYTE
"""HOROVOD_FUSION_THRESHOLD, until version 0.21 doubled it."""
HOROVOD_CYCLE_S = 0.005
"""HOROVOD_CYCLE_TIME, until version 0.21 made it 1 ms."""


class Ddp:
    """PyTorch's buckets (Li et al., "PyTorch Distributed", VLDB 2020): by size, in order of generation."""

    name = "ddp"

    def __init__(self, bucket_bytes: int = DDP_BUCKET_BYTES, first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES) -> None:
        if min(bucket_bytes, first_bucket_bytes) < 1:
            raise UserError("ddp: bucket_bytes and first_bucket_bytes must be at least 1")
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = first_bucket_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        if profile is None:
            return Plan(push=QueuePlan(credit=ONE_TASK), policy=self.name)
        sizes = [gradient.size_bytes for gradient in profile.gradients]
        return grouped_plan(profile, buckets(sizes, self._bucket_bytes, self._first_bucket_bytes), self.name)


def buckets(
    sizes: Sequence[int],
    bucket_bytes: int = DDP_BUCKET_BYTES,
    first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """DDP's buckets in order of leaving, each as positions in order of generation (falling); `sizes` in forward order.

    A bucket is closed by the gradient with which it reaches its limit, so it may be larger than that
    (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp). This is the order after the
    first iteration, when DDP has seen in which order gradients appear.
    """
    made: list[list[int]] = []
    filled, limit = 0, 0
    for position in reversed(range(len(sizes))):
        if filled >= limit:
            limit = bucket_bytes if made else first_bucket_bytes
            made.append([])
            filled = 0
        made[-1].append(position)
        filled += sizes[position]
    return made


class Horovod:
    """Horovod's tensor fusion (Sergeev and Del Balso, arXiv 1802.05799): what is ready at a tick."""

    name = "horovod"

    def __init__(self, fusion_bytes: int = HOROVOD_FUSION_BYTES, cycle_s: float = HOROVOD_CYCLE_S) -> None:
        if fusion_bytes < 0:
            raise UserError(f"horovod: fusion_bytes is {fusion_bytes}; it must be 0 (no fusion) or more")
        if not (math.isfinite(cycle_s) and cycle_s > 0):
            raise UserError(f"horovod: cycle_s is {cycle_s}; it must be above 0 seconds")
        self._fusion_bytes = fusion_bytes
        self._cycle_s = cycle_s

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        if profile is None:
            return Plan(push=QueuePlan(credit=ONE_TASK), policy=self.name)
        sizes = [gradient.size_bytes for gradient in profile.gradients]
        generation_s = [gradient.generation_s for gradient in profile.gradients]
        groups = fused_by_cycles(generation_s, sizes, self._fusion_bytes, self._cycle_s)
        return grouped_plan(profile, groups, self.name)


def fused_by_cycles(
    generation_s: Sequence[float],
    sizes: Sequence[int],
    fusion_bytes: int = HOROVOD_FUSION_BYTES,
    cycle_s: float = HOROVOD_CYCLE_S,
) -> list[list[int]]:
    """Horovod's fused gradients in order of leaving, each as positions in order of generation (falling).

    Cycles are `cycle_s` apart, from the beginning of the backward pass. What a cycle finds ready is fused in order of
    generation until the next one would exceed `fusion_bytes`, which begins another buffer; one that is larger than that
    goes alone (Controller::FuseResponses in horovod/common/controller.cc; it looks ahead for gradients of the same
    type, and here all are of one). `generation_s` (seconds) and `sizes` (bytes) are in forward order.
    """
    ready_at: dict[int, list[int]] = {}
    for position in reversed(range(len(sizes))):
        # Times are sums of floating-point shares: one that is a tick but for its last bits counts as that tick.
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
