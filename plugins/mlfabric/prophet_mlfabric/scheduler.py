"""Transfers of a batch of updates: ordering, aggregation and replication in turn (MLfabric, section 5).

Rule of this file: the decision about one batch, and its consequences for the next. It knows no clock: a batch, the
network's state and the time go in, and transfers come out.

A schedule lists transfers in reservation order, which is also their priority on the wire: each gets the bandwidth that
earlier ones leave. If the network turns out slower or faster, times change, but neither the order nor the bounds do.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from prophet_mlfabric.aggregation import Group, aggregate
from prophet_mlfabric.network import NetworkState, Node, Piece
from prophet_mlfabric.ordering import Update, order_updates
from prophet_mlfabric.replication import DivergenceLedger


@dataclass(eq=False)
class PlannedTransfer:
    """One transfer: an update to its destination or an aggregator or, with `after`, an aggregator's sum, which starts
    after those have ended. Sizes in bytes; times in seconds.

    At the server or replica, its updates are applied together once it and all earlier ones have ended and the other
    side has `needs` updates (0 without a replica). `end_s` is its end, and `pieces` the bandwidth used until then;
    whoever carries out the transfer sets both.
    """

    source: Node
    destination: Node
    size_bytes: float
    updates: tuple[Update, ...] = ()
    after: tuple[PlannedTransfer, ...] = ()
    needs: int = 0
    end_s: float = field(default=math.inf, repr=False)
    pieces: list[Piece] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class BatchSchedule:
    """Decision about one batch.

    Of the `transfers`, `commits` end at the server and `copies` at the replica, each in order. `dropped` updates never
    leave their workers.
    """

    transfers: tuple[PlannedTransfer, ...]
    commits: tuple[PlannedTransfer, ...]
    copies: tuple[PlannedTransfer, ...]
    dropped: tuple[Update, ...]


class Scheduler:
    """MLfabric's scheduler for one server and at most one replica (section 4)."""

    def __init__(
        self,
        server: Node,
        aggregators: Sequence[Node],
        delay_bound: int | None = None,
        replica: Node | None = None,
        divergence_bound: float = math.inf,
        momentum: float = 0.0,
        seed: int = 0,
    ) -> None:
        """`delay_bound` is tau_max, `divergence_bound` Div_max.

        Aggregators are assigned to runs at random, as in the paper, but faster NICs before slower ones: a run's sum is
        no faster than its aggregator.
        """
        self.server = server
        self.aggregators = tuple(aggregators)
        self.delay_bound = delay_bound
        self.replica = replica
        self.version = 0
        """v_init: the model's version once all scheduled updates are applied."""
        self._divergence_bound = divergence_bound
        self._ledger = None if replica is None else DivergenceLedger(divergence_bound, momentum)
        self.punted: tuple[Update, ...] = ()
        """Updates that the replica lacks and that are not in flight to it."""
        self._random = np.random.default_rng(seed)

    def schedule(
        self,
        updates: Sequence[Update],
        network: NetworkState,
        now_s: float,
        busy_until_s: float = -math.inf,
        replica_busy_until_s: float = -math.inf,
    ) -> BatchSchedule:
        """Return the transfers of one batch, to the replica those of section 5.3.

        `network` is the monitor's report less what earlier batches still use; it is unchanged. `busy_until_s` and
        `replica_busy_until_s` are when earlier batches' last transfers to the server and the replica should end.
        """
        server, replica, ledger = self.server, self.replica, self._ledger
        order, dropped = order_updates(updates, network, server, now_s, self.delay_bound, self.version)
        ranked = self._ranked(network, now_s)
        self.version += len(order)
        weights = [update.norm for update in order]
        if ledger is not None:
            for norm in weights:
                ledger.add(norm)
            weights = ledger.weights(self.version - len(order))
        tentative = aggregate(order, network, server, ranked, now_s, busy_until_s, weights, self._divergence_bound)
        transfers: list[PlannedTransfer] = []
        if replica is None or ledger is None:
            commits = [_append(group, server, transfers) for group in tentative.groups]
            return BatchSchedule(tuple(transfers), tuple(commits), (), dropped)

        # The replica has `start` updates once all transfers in flight to it have arrived. Of its groups, those are sent
        # that the bound requires, or that arrive before the batch's last update is applied. The rest is punted.
        pending, ranked = (*self.punted, *order), self._ranked(network, now_s)
        start = len(ledger) - len(pending)
        weights, most = ledger.weights(start), self._divergence_bound
        groups = aggregate(
            pending, tentative.network, replica, ranked, now_s, replica_busy_until_s, weights, most
        ).groups
        positions = _positions(start, groups)
        needed = [ledger.needed(at) for at in _positions(self.version - len(order), tentative.groups)[1:]]
        required, sent = max(needed, default=0), 0
        while sent < len(groups) and (positions[sent] < required or groups[sent].applied_s <= tentative.end_s):
            sent += 1
        self.punted = pending[positions[sent] - start :]
        # The server's groups give way from the first one on for which the replica is too late (in the paper only the
        # last does). Every group is checked: the replica may lag in the middle of a batch and catch up at its end.
        late = (
            place
            for place, (group, need) in enumerate(zip(tentative.groups, needed, strict=True))
            if need > start and groups[bisect_left(positions, need) - 1].applied_s > group.applied_s
        )
        kept = next(late, len(needed))
        placed = list(zip(tentative.groups, needed, strict=True))
        commits = [_append(group, server, transfers, needs) for group, needs in placed[:kept]]
        copied = zip(groups[:sent], positions[1:], strict=False)
        copies = [_append(group, replica, transfers, ledger.needed(at)) for group, at in copied]
        commits += [_append(group, server, transfers, needs) for group, needs in placed[kept:]]
        return BatchSchedule(tuple(transfers), tuple(commits), tuple(copies), dropped)

    def _ranked(self, network: NetworkState, now_s: float) -> list[Node]:
        def speed(node: Node) -> float:
            return min(network.uplinks[node].most_since(now_s), network.downlinks[node].most_since(now_s))

        shuffled = [self.aggregators[place] for place in self._random.permutation(len(self.aggregators))]
        return sorted(shuffled, key=speed, reverse=True)


def _positions(start: int, groups: Sequence[Group]) -> list[int]:
    """Return the number of updates before the first group and after each group."""
    return list(accumulate((len(group.updates) for group in groups), initial=start))


def _append(group: Group, destination: Node, transfers: list[PlannedTransfer], needs: int = 0) -> PlannedTransfer:
    """Append the transfers of a group to `transfers`, and return the last."""
    source, to = group.updates[0].node, group.aggregator
    legs: tuple[PlannedTransfer, ...] = ()
    if to is not None and (to != source or len(group.updates) > 1):  # else there is nothing to sum
        source, legs = to, tuple(PlannedTransfer(u.node, to, u.size_bytes, (u,)) for u in group.updates)
    last = PlannedTransfer(source, destination, group.size_bytes, group.updates, legs, needs)
    transfers += [*legs, last]
    return last
