"""Updates in order go straight to the server or are summed on the way (MLfabric, section 5.2, Algorithm 3).

Rule of this file: from an order to groups with their transfers. Which updates there are, and their order, is given.
docs/policies/mlfabric.md says where this leaves the paper.

The order is cut into k + 1 runs. The first goes straight to the server; each later one goes to an aggregator, which
sends one sum. A run ends where its next update would reach the aggregator after the server's NIC has nothing left to
receive, so that NIC never waits (figure 6). For each length n of the first run the rest follows greedily; the n whose
last sum arrives first is taken. An aggregator whose run would be empty is passed over, and a case that runs out of
aggregators is none; n = |U| always is one.

Time: the first n + 1 transfers of case n + 1 begin with those of case n, so one state grows from case to case. A case
stops when it is worse than the best, or when the last aggregator's NIC is too slow for all that is left; all cases do
when sending n straight is worse than the best. This leaves the paper's minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from prophet_mlfabric.network import FREE, NetworkState, Node, end_of
from prophet_mlfabric.ordering import Update

SLACK_S = 1e-6
"""A bound that is passed by less than this may only be rounded."""


@dataclass(frozen=True)
class Group:
    """Updates that reach the destination at once: one that goes straight there, or a run summed at `aggregator`.

    `arrivals_s` has when each update is at the aggregator (empty without one); `starts_s` is when the last transfer
    may start, `end_s` when it ends, `applied_s` when it and all groups before it have ended. Seconds.
    """

    updates: tuple[Update, ...]
    aggregator: Node | None
    arrivals_s: tuple[float, ...]
    starts_s: float
    end_s: float
    applied_s: float

    @property
    def size_bytes(self) -> float:
        """A sum of dense updates is as large as the largest of them."""
        return max(update.size_bytes for update in self.updates)


@dataclass(frozen=True)
class Aggregation:
    """The groups in order, when the last is applied, and the network with all their transfers reserved."""

    groups: tuple[Group, ...]
    end_s: float
    network: NetworkState


def aggregate(
    order: Sequence[Update],
    network: NetworkState,
    destination: Node,
    aggregators: Sequence[Node],
    now_s: float,
    busy_until_s: float = -math.inf,
    weights: Sequence[float] = (),
    most: float = math.inf,
) -> Aggregation:
    """Algorithm 3. `network` is left as it is.

    The i-th run goes to `aggregators[i]`: the caller assigns them beforehand. `busy_until_s` is when the last update
    of earlier batches is at the destination. With `weights`, one an update, no run weighs more than `most` unless it
    is a single update. Raises UserError where a transfer would never end.
    """
    cuts = _cuts(weights, most) if weights else [len(order)] * len(order)
    loads = _loads(order, aggregators)
    latest_s = max(now_s, busy_until_s)
    best = None if order else Aggregation((), latest_s, network.copy())
    straight: list[Group] = []
    state = network.copy()
    for direct in range(len(order) + 1):
        limit_s = math.inf if best is None else best.end_s
        if latest_s >= limit_s:
            break
        rest = state.copy()
        sums = _sums(order, direct, rest, destination, aggregators, now_s, latest_s, limit_s, cuts, loads)
        if sums is not None:
            best = Aggregation((*straight, *sums), sums[-1].applied_s if sums else latest_s, rest)
        if direct < len(order):
            update = order[direct]
            end = state.reserve(update.node, destination, update.size_bytes, now_s)
            latest_s = max(latest_s, end)
            straight.append(Group((update,), None, (), now_s, end, latest_s))
    assert best is not None  # sending everything straight is always possible
    return best


def _cuts(weights: Sequence[float], most: float) -> list[int]:
    """Return for each update the latest end of a run that begins with it: the place after its last update."""
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    ends = np.searchsorted(sums, sums[:-1] + most, side="right") - 1
    return [max(place + 1, int(end)) for place, end in enumerate(ends)]


def _loads(order: Sequence[Update], aggregators: Sequence[Node]) -> list[float]:
    """Return the bytes that the last aggregator would receive if it had all updates from each place on."""
    if not aggregators:
        return []
    sizes = [0.0 if update.node == aggregators[-1] else update.size_bytes for update in reversed(order)]
    return [*reversed(list(accumulate(sizes))), 0.0]


def _sums(
    order: Sequence[Update],
    start: int,
    state: NetworkState,
    destination: Node,
    aggregators: Sequence[Node],
    now_s: float,
    latest_s: float,
    limit_s: float,
    cuts: Sequence[int],
    loads: Sequence[float],
) -> list[Group] | None:
    """DetAgg from line 8 on: the runs from place `start` on, reserved in `state`.

    None where aggregators run out, or where the last sum would not be there before `limit_s`.
    """
    groups: list[Group] = []
    place, count = start, len(order)
    for which, node in enumerate(aggregators, start=1):
        if place == count:
            break
        load = loads[place] if which == len(aggregators) else 0.0
        # What is at the aggregator's own node does not need its NIC, however busy that is.
        if load > 0 and end_of(FREE, state.downlinks[node], load, now_s) > latest_s + SLACK_S:
            return None
        first, cut = place, cuts[place]
        arrivals: list[float] = []
        while place < cut:
            update = order[place]
            end, pieces = state.pieces(update.node, node, update.size_bytes, now_s)
            if end > latest_s:
                break
            state.take(update.node, node, pieces)
            arrivals.append(end)
            place += 1
        if arrivals:
            members, starts = tuple(order[first:place]), max(arrivals)
            end = state.reserve(node, destination, max(update.size_bytes for update in members), starts)
            latest_s = max(latest_s, end)
            if latest_s >= limit_s:
                return None
            groups.append(Group(members, node, tuple(arrivals), starts, end, latest_s))
    return groups if place == count and latest_s < limit_s else None
