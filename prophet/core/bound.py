"""The least iteration time that any schedule could reach for a profile on a network.

Rule of this file: the fluid schedule, the bound and its proof; no scheduler is involved.
"""

from __future__ import annotations

from collections.abc import Sequence

from prophet.core.profile import Profile


def lower_bound_s(profile: Profile, bandwidth: float, round_trip_s: float = 0.0) -> float:
    """Seconds of one iteration on an ideal network: fluid, preemptive, free of overhead, full duplex.

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


def forward_remaining(profile: Profile) -> list[float]:
    """F(i) for every gradient: forward seconds of its layer and all after it."""
    remaining = []
    total = 0.0
    for gradient in reversed(profile.gradients):
        total += gradient.forward_s
        remaining.append(total)
    return remaining[::-1]


def completion_times(profile: Profile, transfers_s: Sequence[float]) -> list[float]:
    """u(i): when each gradient ends, in seconds after backward began, sent preemptively in forward order.

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
