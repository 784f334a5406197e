"""The least iteration time that any schedule could reach for a profile on a network.

Rule of this file: bounds and their proofs; no scheduler is involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.profile import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray


def lower_bound_s(profile: Profile, bandwidth: float, round_trip_s: float = 0.0) -> float:
    """Return the seconds of one iteration on an ideal network: fluid, preemptive, free of overhead, full duplex.

    `bandwidth` is the worker's link in bytes per second, each way. Gradient i is released at its
    generation time c(i) and needs s(i)/bandwidth seconds of the uplink. Its pull flows back over the downlink as
    the push arrives (cut-through: no byte can be pulled before every worker pushed it, and none needs to be
    later), so push and pull end together, at u(i). Forward computes layer i once u(i) is past and layer i-1
    is done (paper, Eq. 3), so the iteration takes

        max over i of u(i) + F(i),  F(i) = forward seconds of layers i, i+1, ...

    Choosing u is scheduling jobs with release times c(i) on one machine, preemption allowed, to minimise
    the largest lateness for due dates -F(i). Preemptive earliest-due-date is optimal (Horn, 1974): if any
    schedule works on b while a, released and due no later, is unfinished, exchange that work with the next
    work on a. u(a) does not rise; u(b) is at most the old u(a), and u(a) + F(a) >= u(a) + F(b), so the
    largest lateness does not rise. F never rises with i, so earliest due date is forward order. Every
    order, partition, credit and block is a schedule of this same machine with more constraints, so none ends sooner.

    On a long wire every byte of every gradient is under way to the server and back, `round_trip_s` seconds at least, so
    each u(i) is that much later, and the bound with them.
    """
    transfers_s = [gradient.size_bytes / bandwidth for gradient in profile.gradients]
    ends = zip(completion_times(profile, transfers_s), forward_remaining(profile), strict=True)
    return max(done + forward for done, forward in ends) + round_trip_s


def blocks_bound_s(profile: Profile, bandwidth: float, overhead_s: float, answer_s: float = 0.0) -> float:
    """Return the seconds of one iteration that no cut into blocks can go below, of any sizes and in any order.

    As `lower_bound_s`, but what travels are blocks of up to MOST_BLOCK_BYTES: each takes `overhead_s` of the worker's
    link beside its bytes, each way, and is pulled once it has been pushed whole, `answer_s` later at the earliest.

    Take the gradients i to j, N bytes, and the m blocks that have a part of them, of s(1), s(2), ... bytes in the order
    in which they are pushed. None leaves before c(j). Block k is through when those before it are, and it and those
    after it are pulled later still. So for every k the last one is back no sooner than

        c(j) + (sum over l <= k of (overhead + s(l)/bandwidth)) + answer + (sum over l >= k of the same)
            >= c(j) + N/bandwidth + m overhead + answer + overhead + s(k)/bandwidth,

    which has block k twice: the pull lane is as fast as the push lane, so what it is behind after a large block it
    never makes up, wherever that block is. With k the largest, s(k) >= N/m. Forward still has F(j) to do then. The
    bound is the greatest of all i and j, with the best m for each.
    """
    ends = np.cumsum([float(gradient.size_bytes) for gradient in profile.gradients])
    remaining_s = forward_remaining(profile)
    bound_s = lower_bound_s(profile, bandwidth)
    for last, gradient in enumerate(profile.gradients):
        size_bytes = ends[last] - np.concatenate(([0], ends[:last]))
        back_s = size_bytes / bandwidth + _least_lag_s(size_bytes, bandwidth, overhead_s) + answer_s + overhead_s
        bound_s = max(bound_s, gradient.generation_s + float(back_s.max()) + remaining_s[last])
    return bound_s


def _least_lag_s(size_bytes: NDArray[np.float64], bandwidth: float, overhead_s: float) -> NDArray[np.float64]:
    """Return the lag of these bytes in the best number m of equal blocks: m overheads, and one block once more."""
    if not overhead_s:
        return np.zeros_like(size_bytes)
    least = np.maximum(1, np.ceil(size_bytes / MOST_BLOCK_BYTES))
    best = np.sqrt(size_bytes / (overhead_s * bandwidth))
    few, many = (np.maximum(least, rounded) for rounded in (np.floor(best), np.ceil(best)))
    lags_s: tuple[NDArray[np.float64], ...] = tuple(
        blocks * overhead_s + size_bytes / (blocks * bandwidth) for blocks in (few, many)
    )
    least_s: NDArray[np.float64] = np.minimum(*lags_s)
    return least_s


def forward_remaining(profile: Profile) -> list[float]:
    """Return F(i) for every gradient: forward seconds of its layer and all after it."""
    remaining = []
    total = 0.0
    for gradient in reversed(profile.gradients):
        total += gradient.forward_s
        remaining.append(total)
    return remaining[::-1]


def completion_times(profile: Profile, transfers_s: Sequence[float]) -> list[float]:
    """Return u(i), the end of each gradient in seconds after backward began, sent preemptively in forward order.

    `transfers_s` is how long each gradient takes alone. Gradients are generated from the last index to the
    first, so a new one is always more urgent than all that wait: the ready ones are a stack, and this
    takes O(n).
    """
    left = list(transfers_s)
    done = [0.0] * len(left)
    waiting: list[int] = []
    now = 0.0
    for index in reversed(range(len(left))):
        generated = profile.gradients[index].generation_s
        while waiting and now + left[waiting[-1]] <= generated:
            now += left[waiting[-1]]
            done[waiting.pop()] = now
        if waiting:
            left[waiting[-1]] -= max(0.0, generated - now)
        now = max(now, generated)
        waiting.append(index)
    while waiting:
        now += left[waiting[-1]]
        done[waiting.pop()] = now
    return done
