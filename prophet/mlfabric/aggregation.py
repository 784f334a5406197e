"""Which ordered updates go straight to the server and which are summed on the way (MLfabric, section 5.2, Algorithm 3).

Rule of this file: from an order to groups with their transfers. Which updates there are, and their order, is given.

The order is cut into k + 1 runs. The first goes straight to the server; each later one goes to an aggregator, which
sends one sum. A run ends where its next update would reach the aggregator after the server's NIC has nothing left to
receive, so that NIC never waits (figure 6). For each length n of the first run the rest follows greedily; the n whose
last sum arrives first is taken.

Where the paper's listing and its text differ, or leave something open:

- The listing returns before the last run's sum is sent; the text minimizes the time until it has arrived. So does this.
- With n = 0 the listing starts from t_max = 0, and nothing can be aggregated by then. Here t_max starts at the moment
  until which earlier batches keep the server's NIC busy: while it is, summing costs nothing.
- An aggregator whose run is empty when the next update would come too late is passed over.
- A case that runs out of aggregators is no case; n = |U| always is one.
- A run also ends where its weight would pass a limit. Replication sets one: a sum moves a model in one step, and no
  step may be longer than the divergence bound.
- Updates are applied in order. A transfer that ends before an earlier one's is applied with that one: `applied_s`.

Time: the first n + 1 transfers of case n + 1 begin with those of case n, so one state grows from case to case. A case
stops when it is worse than the best, and all cases do when sending n straight is. This leaves the paper's minimum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prophet.errors import UserError
from prophet.mlfabric.network import NetworkState, Node
from prophet.mlfabric.ordering import Update


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

    @property
    def direct(self) -> int:
        """n: how many updates go straight to the destination."""
        return sum(group.aggregator is None for group in self.groups)


def aggregate(
    order: Sequence[Update],
    network: NetworkState,
    destination: Node,
    aggregators: Sequence[Node],
    now_s: float,
    busy_until_s: float = -math.inf,
    weights: Sequence[float] = (),
    most: float = math.inf,
    exhaustive: bool = False,
) -> Aggregation:
    """Algorithm 3. `network` is left as it is.

    The i-th run goes to `aggregators[i]`: the caller assigns them beforehand. `busy_until_s` is when the last update
    of earlier batches is at the destination. With `weights`, one an update, no run weighs more than `most` unless it
    is a single update. `exhaustive` tries every case to its end, as the paper does; the result is the same. Raises
    UserError where a transfer would never end.
    """
    cuts = _cuts(weights, most) if weights else None
    if not order:
        return Aggregation((), max(now_s, busy_until_s), network.copy())
    state = network.copy()
    best_end, best_case = math.inf, -1
    latest = max(now_s, busy_until_s)
    for direct in range(len(order) + 1):
        if latest >= best_end and not exhaustive:
            break
        limit = math.inf if exhaustive else best_end
        end = _rest_end(order, direct, state.copy(), destination, aggregators, now_s, latest, limit, cuts)
        if end < best_end:
            best_end, best_case = end, direct
        if direct < len(order):
            update = order[direct]
            latest = max(latest, state.reserve(update.node, destination, update.size_bytes, now_s))
    if best_case < 0:
        raise UserError(f"updates never reach node {destination}: give every node a positive rate")
    return _build(order, best_case, network.copy(), destination, aggregators, now_s, max(now_s, busy_until_s), cuts)


def _cuts(weights: Sequence[float], most: float) -> list[int]:
    """For each update where a run that begins with it has to end at the latest: the place after its last update."""
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    ends = np.searchsorted(sums, sums[:-1] + most, side="right") - 1
    return [max(place + 1, int(end)) for place, end in enumerate(ends)]


def _rest_end(
    order: Sequence[Update],
    start: int,
    state: NetworkState,
    destination: Node,
    aggregators: Sequence[Node],
    now_s: float,
    latest_s: float,
    limit_s: float,
    cuts: Sequence[int] | None,
) -> float:
    """DetAgg from line 8 on, times only: when the last sum arrives; infinity for no case or none below the limit."""
    which = members = 0
    at_aggregator = size = 0.0
    place, count = start, len(order)
    cut = count if cuts is None else -1
    while place < count:
        if which == len(aggregators):
            return math.inf
        update, node = order[place], aggregators[which]
        end, pieces = state.pieces(update.node, node, update.size_bytes, now_s)
        if not members and cuts is not None:
            cut = cuts[place]
        if end > latest_s or place == cut:
            if members:
                latest_s = max(latest_s, state.reserve(node, destination, size, at_aggregator))
                if latest_s >= limit_s:
                    return math.inf
            which, members, at_aggregator, size = which + 1, 0, 0.0, 0.0
            continue
        state.take(update.node, node, pieces)
        members += 1
        at_aggregator = end if end > at_aggregator else at_aggregator
        size = update.size_bytes if update.size_bytes > size else size
        place += 1
    if members:
        latest_s = max(latest_s, state.end(aggregators[which], destination, size, at_aggregator))
    return latest_s


def _build(
    order: Sequence[Update],
    direct: int,
    state: NetworkState,
    destination: Node,
    aggregators: Sequence[Node],
    now_s: float,
    latest_s: float,
    cuts: Sequence[int] | None,
) -> Aggregation:
    """The same case again, with what it consists of."""
    groups: list[Group] = []
    for update in order[:direct]:
        end = state.reserve(update.node, destination, update.size_bytes, now_s)
        latest_s = max(latest_s, end)
        groups.append(Group((update,), None, (), now_s, end, latest_s))
    which, place = 0, direct
    while place < len(order):
        node = aggregators[which]
        members: list[Update] = []
        arrivals: list[float] = []
        cut = len(order) if cuts is None else cuts[place]
        while place < cut:
            update = order[place]
            end, pieces = state.pieces(update.node, node, update.size_bytes, now_s)
            if end > latest_s:
                break
            state.take(update.node, node, pieces)
            members.append(update)
            arrivals.append(end)
            place += 1
        if members:
            size = max(update.size_bytes for update in members)
            end = state.reserve(node, destination, size, max(arrivals))
            latest_s = max(latest_s, end)
            groups.append(Group(tuple(members), node, tuple(arrivals), max(arrivals), end, latest_s))
        which += 1
    return Aggregation(tuple(groups), latest_s, state)
