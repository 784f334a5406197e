"""Lower bounds on the iteration time of any schedule, for a profile on a network.

Rule of this file: bounds and their proofs. No scheduler is involved.
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

    `bandwidth` is the rate of the worker's link in bytes per second, each way. Gradient i is released at its
    generation time c(i) and needs s(i)/bandwidth seconds of the uplink. Its pull flows back over the downlink as
    the push arrives (cut-through: a byte can be pulled as soon as every worker has pushed it), so push and pull end
    together, at u(i). Forward computes layer i after u(i) and after layer i-1 is done (paper, Eq. 3), so the
    iteration takes

        max over i of u(i) + F(i),  F(i) = forward seconds of layers i, i+1, ...

    To choose u is to schedule jobs with release times c(i) on one machine, with preemption, so as to minimise
    the maximum lateness for due dates -F(i). Preemptive earliest-due-date is optimal (Horn, 1974): if any
    schedule works on b while a, released and due no later, is unfinished, exchange that work with the next
    work on a. u(a) does not rise. u(b) is at most the old u(a), and u(a) + F(a) >= u(a) + F(b), so the
    maximum lateness does not rise. F never rises with i, so earliest due date is forward order. Any choice of
    order, partitions, credit and blocks is a schedule of the same machine with more constraints, so none ends sooner.

    On a long link every byte travels to the server and back for at least `round_trip_s` seconds. This delays each u(i),
    and so the bound, by that time.
    """
    transfers_s = [gradient.size_bytes / bandwidth for gradient in profile.gradients]
    ends = zip(completion_times(profile, transfers_s), forward_remaining(profile), strict=True)
    return max(done + forward for done, forward in ends) + round_trip_s


def blocks_bound_s(profile: Profile, bandwidth: float, overhead_s: float, answer_s: float = 0.0) -> float:
    """Return a lower bound on the seconds of one iteration for any cut into blocks, sent in any order.

    As in `lower_bound_s`, but with blocks of up to MOST_BLOCK_BYTES. Each way, a block occupies the worker's link for
    `overhead_s` in addition to its bytes. Its pull starts `answer_s` after the whole block was pushed, or later.

    Take the gradients i to j, N bytes, and the m blocks that contain parts of them, of s(1), s(2), ... bytes in the
    order in which they are pushed. None leaves before c(j). Block k is pushed after all blocks before it, and it and
    those after it are pulled later still. So for every k the last one is back no sooner than

        c(j) + (sum over l <= k of (overhead + s(l)/bandwidth)) + answer + (sum over l >= k of the same)
            >= c(j) + N/bandwidth + m overhead + answer + overhead + s(k)/bandwidth.

    This counts block k twice: the pull lane is only as fast as the push lane, so it never makes up the lag after a
    large block, wherever that block is. For the largest k, s(k) >= N/m. Forward then still needs F(j). The bound is the
    maximum over all i and j, with the best m for each.
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
    """Return the lag for the best number m of equal blocks: m overheads, and the time of one block."""
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
    """Return F(i) for each gradient: the forward seconds of its layer and all later layers."""
    remaining = []
    total = 0.0
    for gradient in reversed(profile.gradients):
        total += gradient.forward_s
        remaining.append(total)
    return remaining[::-1]


def completion_times(profile: Profile, transfers_s: Sequence[float]) -> list[float]:
    """Return u(i), the finish of each gradient in seconds after backward began, if sent preemptively in forward order.

    `transfers_s` is the time that each gradient takes alone. Gradients are generated from the last index to the
    first, so a new one is always more urgent than all that wait. The ready ones thus form a stack, and this takes O(n).
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
