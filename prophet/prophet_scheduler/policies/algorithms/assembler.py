"""The block assembler: Algorithm 1 of the paper as a pure function, and the waiting time by which it is judged.

Rule of this file: the paper's plan from a profile and a bandwidth. The online form, which decides partition by
partition in a running job, is the queue's deadline (core/native/queue.h) under the plan of policies/prophet.py.

The algorithm as printed needs interpretation in three places:
- A(i) = min |c(i) - c(j)|, j < i, is 0 for all but the most urgent gradient of a step, so those would never
  be sent. What is meant is the time until a more urgent gradient *appears*: over j that are generated later.
- Line 8 starts a block at c(p). If p waited for an earlier block or step, that time has passed; a block
  starts when the wire is free (constraint 8).
- A gradient that fits into no interval of the backward pass keeps the loop of line 2 from ending. It waits
  for the forward pass, as constraint 9 says.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class GradientBlock:
    """Gradients (indices) sent one after another from `start_s` to `end_s`, in seconds after backward began."""

    gradients: tuple[int, ...]
    start_s: float
    end_s: float
    in_backward: bool


@dataclass(frozen=True)
class Schedule:
    """`start_s[i]` is the start of gradient i's push, in seconds after backward began; the paper's t(i)."""

    start_s: tuple[float, ...]
    blocks: tuple[GradientBlock, ...]


def assemble(profile: Profile, network: Network) -> Schedule:
    """Return start times and blocks for one iteration (paper, section 4.1, Algorithm 1); O(n log n).

    During backward, the most urgent ready gradients join a block as long as they end before the next more urgent
    gradient is generated (constraint 11). Gradient 0 is sent when generated; the rest follow by priority, one after
    another (constraint 9).
    """
    gradients = profile.gradients
    costs = [network.transfer_s(gradient.size_bytes) for gradient in gradients]
    starts = [0.0] * len(gradients)
    blocks: list[GradientBlock] = []
    ready: list[int] = []
    pending = len(gradients) - 1  # the next to be generated: a higher index is never generated later
    now = gradients[pending].generation_s
    while pending > 0 and gradients[pending].generation_s < profile.backward_s:
        while gradients[pending].generation_s <= now:
            heapq.heappush(ready, pending)
            pending -= 1
        # Indices up to `pending` are all more urgent than the ready ones.
        next_urgent = gradients[pending].generation_s
        block: list[int] = []
        at = now
        while ready and at + costs[ready[0]] <= next_urgent:
            chosen = heapq.heappop(ready)
            starts[chosen] = at
            at += costs[chosen]
            block.append(chosen)
        if block:
            blocks.append(GradientBlock(tuple(block), now, at, in_backward=True))
        now = next_urgent
    forward = sorted([*ready, *range(pending + 1)])
    at = profile.backward_s
    for index in forward:
        starts[index] = at
        at += costs[index]
    blocks.append(GradientBlock(tuple(forward), profile.backward_s, at, in_backward=False))
    return Schedule(tuple(starts), tuple(blocks))


def wait_time_s(profile: Profile, network: Network, start_s: tuple[float, ...]) -> float:
    """Return T_wait: how long the processor idles in one iteration with these start times (paper, Eqs. 2-4)."""
    updated = [
        start + 2 * network.transfer_s(gradient.size_bytes)
        for start, gradient in zip(start_s, profile.gradients, strict=True)
    ]
    waited = updated[0] - profile.backward_s
    done = updated[0] + profile.gradients[0].forward_s
    for gradient, available in zip(profile.gradients[1:], updated[1:], strict=True):
        waited += max(0.0, available - done)
        done = max(done, available) + gradient.forward_s
    return waited
