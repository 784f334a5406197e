"""Batches of small parameters that travel together (Caramel, section 4.2).

Rule of this file: turn windows and a network into batches, in sending order; packing.py decides when they travel.
Sizes are bytes, times seconds since backward began.

Choices where the paper is not explicit:

- "If the transfers in the queue are done before the next parameter update" is read as: the batch could start before
  then. So parameters generated at the same moment share a batch even if the network is idle.
- A parameter above the threshold overtakes a batch that is still open.
- The threshold, "min x with f(2x) / 2f(x) > 0.8", is where joining two transfers no longer saves 20% of the time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from prophet_papers.algorithms.caramel.windows import Window
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network

GAIN = 0.8
"""Ratio of joined to separate time of two transfers above which joining no longer pays (the paper's constant)."""


@dataclass(frozen=True)
class Batch:
    """Parameters that travel as one, `members` by index of their windows; ready with the last, read with the first.

    `generated_s` counts from the start of backward, `read_s` from the start of forward, as in Window.
    """

    members: tuple[int, ...]
    size_bytes: int
    generated_s: float
    read_s: float


def threshold_bytes(network: Network, gain: float = GAIN) -> float:
    """Return the smallest x with E(2x) / 2E(x) >= `gain`; 0 for a network without overhead.

    With E(x) = a + x/B: a + 2x/B = gain (2a + 2x/B), so x = a B (2 gain - 1) / (2 (1 - gain)). For 0.8 this is 1.5 a B,
    the size at which the overhead is 40% of the time. Raises UserError if `gain` is not in [0.5, 1).
    """
    if not 0.5 <= gain < 1:
        raise UserError(f"gain is {gain}; it must be 0.5 or more and below 1")
    return network.overhead_s * network.bandwidth * (2 * gain - 1) / (2 * (1 - gain))


def batch(parameters: Sequence[Window], network: Network, threshold: float | None = None) -> tuple[Batch, ...]:
    """Return the batches in sending order; each of `parameters` is in exactly one.

    `parameters` are in generation order; UserError if not. `threshold` is in bytes, by default
    `threshold_bytes(network)`; 0 joins nothing.
    """
    for before, after in itertools.pairwise(parameters):
        if after.generated_s < before.generated_s:
            raise UserError(f"parameters: {after.name!r} is generated before {before.name!r}; sort them by generated_s")
    limit = threshold_bytes(network) if threshold is None else threshold
    batches: list[Batch] = []
    open_members: list[int] = []
    open_bytes = 0
    free_s = 0.0

    def leave(members: Sequence[int], now: float) -> None:
        nonlocal free_s
        made = _made(parameters, members)
        batches.append(made)
        free_s = max(free_s, now) + network.transfer_s(made.size_bytes)

    for place, parameter in enumerate(parameters):
        now = parameter.generated_s
        if parameter.size_bytes > limit:
            leave([place], now)
        else:
            open_members.append(place)
            open_bytes += parameter.size_bytes
        next_s = parameters[place + 1].generated_s if place + 1 < len(parameters) else math.inf
        if open_members and (open_bytes > limit or max(free_s, now) < next_s):
            leave(open_members, now)
            open_members, open_bytes = [], 0
    return tuple(batches)


def _made(parameters: Sequence[Window], members: Sequence[int]) -> Batch:
    chosen = [parameters[place] for place in members]
    return Batch(
        tuple(members),
        sum(parameter.size_bytes for parameter in chosen),
        max(parameter.generated_s for parameter in chosen),
        min(parameter.read_s for parameter in chosen),
    )
