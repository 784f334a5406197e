"""PyTorch's DistributedDataParallel: gradients fused into buffers of a fixed size, in order of generation.

Rule of this file: which gradients share a bucket, as PyTorch decides it, and the plan for these buckets.
docs/policies/baselines.md has the mapping, and the parts of PyTorch that it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition
from prophet_scheduler.policies.algorithms.plans import grouped_plan

MEBIBYTE = 1024 * 1024

DDP_BUCKET_BYTES = 25 * MEBIBYTE
"""bucket_cap_mb of torch.nn.parallel.DistributedDataParallel."""
DDP_FIRST_BUCKET_BYTES = MEBIBYTE
"""kDefaultFirstBucketBytes: the first bucket is small so that the network starts early."""


class Ddp:
    """PyTorch's buckets (Li et al., "PyTorch Distributed", VLDB 2020): by size, in order of generation."""

    name = "ddp"

    def __init__(self, bucket_bytes: int = DDP_BUCKET_BYTES, first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES) -> None:
        if min(bucket_bytes, first_bucket_bytes) < 1:
            raise UserError("ddp: bucket_bytes and first_bucket_bytes must be at least 1")
        self._bucket_bytes = bucket_bytes
        self._first_bucket_bytes = first_bucket_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        limits = self._bucket_bytes, self._first_bucket_bytes
        return grouped_plan(self.name, profile, lambda generation_s, sizes: buckets(sizes, *limits))


def buckets(
    sizes: Sequence[int],
    bucket_bytes: int = DDP_BUCKET_BYTES,
    first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Return DDP's buckets in send order, each as (falling) positions in order of generation; `sizes` in forward order.

    A bucket is closed by the gradient with which it reaches its limit, so it may exceed the limit
    (compute_bucket_assignment_by_size in torch/csrc/distributed/c10d/reducer.cpp). This is the order after the first
    iteration, when DDP has seen the order of generation.
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


POLICIES = {
    "ddp": Definition(
        "gradients merged as in PyTorch DDP",
        lambda options, partition_bytes: Ddp(),
        page="policies/baselines.md",
        groups=True,
        waits=True,
    )
}
