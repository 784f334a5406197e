"""Groups of updates that go straight to the server or are summed on the way (MLfabric, section 5.2, Algorithm 3), and
the same in reverse: the distribution of one version of the model.

Rule of this file: from an order to groups. docs/policies/mlfabric.md lists the differences from the paper.

The order is cut into k + 1 runs. The first goes straight to the server; each later run goes to an aggregator, which
sends one sum. A run ends where its next update would reach the aggregator after the server's NIC has run out of work,
so that NIC never waits (figure 6). Each length n of the first run determines the rest greedily; the n whose last sum
arrives first wins. An aggregator with an empty run is skipped. A case that needs more aggregators than exist is
invalid; n = |U| is always valid.

Cost: case n + 1 starts with the transfers of case n, so one network state grows from case to case. A case is abandoned
once it is worse than the best, and the search ends once sending n straight is. The minimum is still the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prophet_mlfabric.network import NetworkState, Node
from prophet_mlfabric.ordering import Update, order_updates


@dataclass(frozen=True)
class Group:
    """Updates that reach the destination together: one that goes straight there, or a run summed at `aggregator`.

    `applied_s` is the time in seconds at which this and all earlier groups have arrived.
    """

    updates: tuple[Update, ...]
    aggregator: Node | None
    applied_s: float

    @property
    def size_bytes(self) -> float:
        """Size of the group's last transfer: a sum of dense updates is as large as its largest update."""
        return max(update.size_bytes for update in self.updates)


class Aggregation(NamedTuple):
    """Groups in order, the time when the last is applied, and the network with all their transfers reserved."""

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
    """Return the groups of Algorithm 3. `network` is unchanged.

    The i-th run goes to `aggregators[i]`, which the caller has assigned. `busy_until_s` is when the last update of
    earlier batches arrives at the destination. With `weights`, one per update, a run of several updates weighs at most
    `most`. Raises UserError if a transfer would never end.
    """
    cuts = _cuts(weights, most) if weights else [len(order)] * len(order)

    def sums(place: int, state: NetworkState, latest_s: float, limit_s: float) -> list[Group] | None:
        """Return the runs from index `place` on, reserved in `state` (DetAgg from line 8 on).

        None if aggregators run out, or if the last sum would not arrive before `limit_s`.
        """
        groups: list[Group] = []
        for node in aggregators:
            if place == len(order):
                break
            first, cut = place, cuts[place]
            ready_s = -math.inf
            while place < cut:
                update = order[place]
                end, pieces = state.pieces(update.node, node, update.size_bytes, now_s)
                if end > latest_s:
                    break
                state.take(update.node, node, pieces)
                ready_s = max(ready_s, end)
                place += 1
            if members := tuple(order[first:place]):
                end = state.reserve(node, destination, max(update.size_bytes for update in members), ready_s)
                latest_s = max(latest_s, end)
                if latest_s >= limit_s:
                    return None
                groups.append(Group(members, node, latest_s))
        return groups if place == len(order) and latest_s < limit_s else None

    latest_s = max(now_s, busy_until_s)
    best = None if order else Aggregation((), latest_s, network.copy())
    straight: list[Group] = []
    state = network.copy()
    for direct in range(len(order) + 1):
        limit_s = math.inf if best is None else best.end_s
        if latest_s >= limit_s:
            break
        rest = state.copy()
        summed = sums(direct, rest, latest_s, limit_s)
        if summed is not None:
            best = Aggregation((*straight, *summed), summed[-1].applied_s if summed else latest_s, rest)
        if direct < len(order):
            update = order[direct]
            latest_s = max(latest_s, state.reserve(update.node, destination, update.size_bytes, now_s))
            straight.append(Group((update,), None, latest_s))
    assert best is not None  # sending everything straight is always possible
    return best


def _cuts(weights: Sequence[float], most: float) -> list[int]:
    """Return for each update the latest end of a run that begins with it: the index after the run's last update."""
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    ends = np.searchsorted(sums, sums[:-1] + most, side="right") - 1
    return [max(place + 1, int(end)) for place, end in enumerate(ends)]


@dataclass(frozen=True)
class Hop:
    """One transfer of the model. `after` is the index of the hop that brings it to the source; None from the server.

    `reader` is the index of the request that it answers; None if the hop only feeds a distributor.
    """

    source: Node
    destination: Node
    after: int | None
    reader: int | None


def distribute(
    readers: Sequence[Node],
    size_bytes: float,
    network: NetworkState,
    server: Node,
    distributors: Sequence[Node],
    now_s: float,
) -> list[Hop]:
    """Return the hops to the nodes that ask at `now_s` (section 10.3), in order of priority. `network` is unchanged."""
    mirror = NetworkState(network.downlinks, network.uplinks)
    requests = [Update(place, node, size_bytes) for place, node in enumerate(readers)]
    order = order_updates(requests, mirror, server, now_s).updates
    hops: list[Hop] = []
    for group in reversed(aggregate(order, mirror, server, distributors, now_s).groups):
        source, after = server, None
        if group.aggregator is not None:
            source, after = group.aggregator, len(hops)
            hops.append(Hop(server, source, None, None))
        hops += [Hop(source, reader.node, after, reader.id) for reader in group.updates]
    return hops
