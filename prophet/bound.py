"""The least iteration time that any schedule could reach for a profile on a network.

Rule of this file: the bound and its proof; no scheduler is involved.
"""

from __future__ import annotations

import heapq

from prophet.model import Profile


def lower_bound_s(profile: Profile, bandwidth: float) -> float:
    """Seconds of one iteration under a fluid, preemptive, overhead-free network of `bandwidth` bytes per second.

    Gradient i is released at its generation time c(i), needs s(i)/bandwidth seconds of the uplink, and
    is pulled back over the downlink at the same time (full duplex, cut-through: no byte of a pull
    can arrive before the same byte was pushed, and none needs to be later). Forward computes layer i once
    its gradient is back and layer i-1 is done, so with completion times u(i) the iteration takes

        max(c(0) + F(0), max over i of (u(i) + F(i))),  F(i) = forward seconds of layers i, i+1, ...

    which is the largest lateness of jobs with due dates -F(i) on one machine with release times and
    preemption. Preemptive earliest-due-date minimises it (Horn 1974; by exchange: give any time that a
    job with a later due date holds while an earlier one is released to the earlier one; its lateness
    falls, and the other still ends no later than the earlier one did). F never rises with i, so
    earliest due date is forward order. No order, partition or credit can do better, because each is a
    schedule of this machine with more constraints.
    """
    order = sorted(range(len(profile.gradients)), key=lambda i: profile.gradients[i].generation_s)
    remaining_forward = [0.0] * (len(profile.gradients) + 1)
    for index in reversed(range(len(profile.gradients))):
        remaining_forward[index] = remaining_forward[index + 1] + profile.gradients[index].forward_s
    latest = profile.backward_s + remaining_forward[0]
    left = {i: profile.gradients[i].size_bytes / bandwidth for i in order}
    ready: list[int] = []
    now = 0.0
    following = 0
    while ready or following < len(order):
        if not ready:
            now = max(now, profile.gradients[order[following]].generation_s)
        while following < len(order) and profile.gradients[order[following]].generation_s <= now:
            heapq.heappush(ready, order[following])
            following += 1
        until = profile.gradients[order[following]].generation_s if following < len(order) else float("inf")
        first = ready[0]
        spent = min(left[first], until - now)
        now = until if spent < left[first] else now + left[first]
        left[first] -= spent
        if left[first] <= 0 or spent == 0:
            heapq.heappop(ready)
            latest = max(latest, now + remaining_forward[first])
    return latest
