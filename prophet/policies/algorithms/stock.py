"""What an iteration would take in an engine's own order, with its barrier: predicted from the same profile and network.

Rule of this file: pure functions of a profile and a network; it is what a status calls predicted, and no policy plans
by it. Times are seconds, sizes bytes.

Both engines send what backward hands over in the order in which it comes, one after another, and begin the next forward
pass when all of it is back. DistributedDataParallel sends its buckets (Li et al., "PyTorch Distributed", VLDB 2020);
BytePS pushes partitions and pulls each when all workers have pushed it, so the way back ends one partition later.
"""

from __future__ import annotations

from collections.abc import Iterable

from prophet.core.cut import MOST_BLOCK_BYTES
from prophet.core.network import Network
from prophet.core.profile import Profile
from prophet.policies.ddp import buckets


def stock_iteration_s(profile: Profile, network: Network, collectives: bool) -> float:
    """Seconds of one iteration. `collectives`: of DistributedDataParallel, otherwise of BytePS.

    The gradients of `profile` may be blocks: these say well enough when which bytes are there.
    """
    messages = list(_buckets(profile) if collectives else _partitions(profile))
    now = 0.0
    for size_bytes, ready_s in messages:
        now = max(now, ready_s) + network.transfer_s(size_bytes)
    back_s = now + network.ack_delay_s
    if not collectives:
        back_s += network.transfer_s(messages[-1][0])
    return max(profile.backward_s, back_s) + profile.forward_s


def _partitions(profile: Profile) -> Iterable[tuple[int, float]]:
    """(bytes, when it is there) in the order of generation."""
    for gradient in reversed(profile.gradients):
        left = gradient.size_bytes
        while left > 0:
            # BytePS's own partition size.
            yield min(left, MOST_BLOCK_BYTES), gradient.generation_s
            left -= MOST_BLOCK_BYTES


def _buckets(profile: Profile) -> Iterable[tuple[int, float]]:
    """As `_partitions`: a bucket is there with its last gradient."""
    gradients = profile.gradients
    for members in buckets([gradient.size_bytes for gradient in gradients]):
        yield sum(gradients[place].size_bytes for place in members), gradients[members[-1]].generation_s
