"""Prediction of an iteration in an engine's own order, with its barrier, from the same profile and network.

Rule of this file: pure functions of a profile and a network; it is what a status calls predicted, and no policy plans
by it. Times are seconds, sizes bytes.

Both engines send what backward hands over in the order in which it comes, one after another, and begin the next forward
pass when all of it is back. DistributedDataParallel sends its buckets (Li et al., "PyTorch Distributed", VLDB 2020).
BytePS pushes partitions, and asks for each when its push is acknowledged; the question stands in line behind all
pushes that are ready by then, so on a slow link much of the way back begins when all has been sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.ddp import buckets


def stock_iteration_s(profile: Profile, network: Network, collectives: bool) -> float:
    """Return seconds of one iteration: of DistributedDataParallel for `collectives`, otherwise of BytePS.

    The gradients of `profile` may be blocks: these say well enough when which bytes are there.
    """
    back_s = _buckets_back_s(profile, network) if collectives else _pulls_back_s(profile, network)
    return max(profile.backward_s, back_s) + profile.forward_s


def _buckets_back_s(profile: Profile, network: Network) -> float:
    """Return the end of the last all-reduce."""
    now = 0.0
    for size_bytes, ready_s in _buckets(profile):
        now = max(now, ready_s) + network.transfer_s(size_bytes)
    return now + network.ack_delay_s


def _pulls_back_s(profile: Profile, network: Network) -> float:
    """Return the time of the last answer: one line for pushes and questions, first come, first served, and one back."""
    pushes = deque(_partitions(profile))
    questions: deque[tuple[int, float]] = deque()
    sent_s = back_s = 0.0
    while pushes or questions:
        if pushes and (not questions or pushes[0][1] <= questions[0][1]):
            size_bytes, ready_s = pushes.popleft()
            sent_s = max(sent_s, ready_s) + network.transfer_s(size_bytes)
            questions.append((size_bytes, sent_s + network.ack_delay_s))
        else:
            size_bytes, asked_s = questions.popleft()
            sent_s = max(sent_s, asked_s)
            back_s = max(back_s, sent_s) + network.transfer_s(size_bytes)
    return back_s


def _partitions(profile: Profile) -> Iterable[tuple[int, float]]:
    """Yield (bytes, time at which it is there) in the order of generation."""
    for gradient in reversed(profile.gradients):
        left = gradient.size_bytes
        while left > 0:
            # BytePS's own partition size.
            yield min(left, MOST_BLOCK_BYTES), gradient.generation_s
            left -= MOST_BLOCK_BYTES


def _buckets(profile: Profile) -> Iterable[tuple[int, float]]:
    """Yield the same of buckets: one is there with its last gradient."""
    gradients = profile.gradients
    for members in buckets([gradient.size_bytes for gradient in gradients]):
        yield sum(gradients[place].size_bytes for place in members), gradients[members[-1]].generation_s
