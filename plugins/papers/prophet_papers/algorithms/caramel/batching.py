"""Batches of small gradients that travel together, and the depth of a transfer (Caramel, sections 3.3.1, 4.2 and 4.4).

Rule of this file: turn a profile and a network into batches, in sending order; packing.py decides when they travel.
Sizes are bytes. An iteration is the backward pass followed by the next forward pass: transfers that do not fit into the
former may go in the latter. So each pass has a clock of its own, in seconds since it began.

Choices where the paper is not explicit:

- "If the transfers in the queue are done before the next parameter update" is read as: the batch could start before
  then. So gradients generated at the same moment share a batch even if the network is idle.
- A gradient above the threshold overtakes a batch that is still open.
- The threshold, "min x with f(2x) / 2f(x) > 0.8", is where joining two transfers no longer saves 20% of the time.
- The depth is limited by the paper and depends on size and threshold. Here it is the maximum number of chunks that are
  not below the threshold: smaller chunks would lose what batching gains.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile

GAIN = 0.8
"""Ratio of joined to separate time of two transfers above which joining no longer pays (the paper's constant)."""
MAX_DEPTH = 8
"""The paper's maximum depth."""


@dataclass(frozen=True)
class Batch:
    """Gradients that travel as one, `members` by index in the profile, in the order of generation.

    It may travel from `generated_s` in the backward pass, when the last member is generated, until `read_s` in the
    forward pass, when the first is read.
    """

    members: tuple[int, ...]
    size_bytes: int
    generated_s: float
    read_s: float


def threshold_bytes(network: Network) -> float:
    """Return the smallest x with E(2x) / 2E(x) >= GAIN; 0 for a network without overhead.

    With E(x) = a + x/B: a + 2x/B = GAIN (2a + 2x/B), so x = a B (2 GAIN - 1) / (2 (1 - GAIN)) = 1.5 a B, the size at
    which the overhead is 40% of the time.
    """
    return network.overhead_s * network.bandwidth * (2 * GAIN - 1) / (2 * (1 - GAIN))


def batch(profile: Profile, network: Network, threshold: float | None = None) -> tuple[Batch, ...]:
    """Return the batches of a chain of layers in sending order; each gradient is in exactly one.

    `threshold` is in bytes, by default `threshold_bytes(network)`; 0 joins nothing.
    """
    limit = threshold_bytes(network) if threshold is None else threshold
    gradients = profile.gradients
    read_s = list(itertools.accumulate((gradient.forward_s for gradient in gradients), initial=0.0))
    batches: list[Batch] = []
    joined: list[int] = []
    joined_bytes = 0
    free_s = 0.0

    def leave(members: Sequence[int], now: float) -> None:
        nonlocal free_s
        size_bytes = sum(gradients[index].size_bytes for index in members)
        last = members[-1]  # of the members it is generated last and read first
        batches.append(Batch(tuple(members), size_bytes, gradients[last].generation_s, read_s[last]))
        free_s = max(free_s, now) + network.transfer_s(size_bytes)

    for index in reversed(range(len(gradients))):
        now = gradients[index].generation_s
        if gradients[index].size_bytes > limit:
            leave([index], now)
        else:
            joined.append(index)
            joined_bytes += gradients[index].size_bytes
        next_s = gradients[index - 1].generation_s if index else math.inf
        if joined and (joined_bytes > limit or max(free_s, now) < next_s):
            leave(joined, now)
            joined, joined_bytes = [], 0
    return tuple(batches)


def adaptive_depth(size_bytes: float, threshold: float) -> int:
    """Return the number of chunks of a transfer, so that network and processor work in parallel: from 1 for small ones
    to MAX_DEPTH for large ones, and always MAX_DEPTH with a threshold of 0 (no overhead).
    """
    if size_bytes >= MAX_DEPTH * threshold:
        return MAX_DEPTH
    return max(1, math.floor(size_bytes / threshold))
