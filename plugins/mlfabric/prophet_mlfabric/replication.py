"""Bound on a replica's lag, and the updates that go to it (MLfabric, sections 3.3 and 5.3, Eqs. 7 to 11).

Rule of this file: norms in, positions and transfers out. It sees no model, so its bound holds for every model whose
updates have these norms. docs/policies/mlfabric.md lists the differences from the paper.

The model moves by w(t+1) = w(t) + u(t) + momentum * (w(t) - w(t-1)) (Eq. 2), so H_t = momentum * H_(t-1) + |u_t| bounds
the t-th step. Server and replica apply the same updates in the same order. So they differ by at most the steps that
only one of them has (Eq. 11): a difference of two entries of one running sum.

A sum moves its model by all its updates at once, so a run's steps may add up to at most Div_max. Then the side that is
behind may always continue, and there is no deadlock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from prophet_mlfabric.aggregation import Aggregation, Group, aggregate
from prophet_mlfabric.network import Node
from prophet_mlfabric.ordering import Update
from prophet_scheduler.core.errors import UserError

ROUNDING = 1e-12
"""Relative tolerance of running sums: a sum equal to the bound is within it."""


class DivergenceLedger:
    """Running sum of step bounds over all scheduled updates. Positions count updates from 0."""

    def __init__(self, bound: float, momentum: float) -> None:
        """`bound` is Div_max, above 0. `momentum` is from 0 to below 1."""
        self.bound, self.momentum = bound, momentum
        self._step = 0.0
        self._sums = [0.0]

    def add(self, norm: float) -> None:
        """Add the next update in order. Raises UserError if its step alone moves the server by more than the bound."""
        self._step = self.momentum * self._step + norm
        if self._step > self.bound * (1 + ROUNDING):
            raise UserError(
                f"divergence bound {self.bound}: one step moves the model by up to {self._step:.6g}; give more"
            )
        self._sums.append(self._sums[-1] + self._step)

    def __len__(self) -> int:
        return len(self._sums) - 1

    def divergence(self, server: int, replica: int) -> float:
        """Return the maximum distance of the two models after `server` and `replica` updates (Eq. 11)."""
        return abs(self._sums[server] - self._sums[replica])

    def needed(self, position: int) -> int:
        """Return the number of updates that one side must have before the other may have `position` updates."""
        reach = self._sums[position]
        return bisect_left(self._sums, reach - self.bound - ROUNDING * reach, 0, position)

    def weights(self, since: int) -> list[float]:
        """Return the maximum movement of the model by each update after position `since`, given the earlier ones."""
        return [after - before for before, after in pairwise(self._sums[since:])]


@dataclass(frozen=True)
class Replication:
    """Transfers to the replica that start with a batch.

    `groups` are its transfers in order; `punted` updates wait for the next batch. `needed[i]` is the position that the
    replica must have reached before the server's i-th group is applied. The replica is in time for the first `kept`
    groups. All later groups give way to the replica's transfers (in the paper only the last one does).
    """

    groups: tuple[Group, ...]
    punted: tuple[Update, ...]
    needed: tuple[int, ...]
    kept: int


def replicate(
    pending: Sequence[Update],
    server: Aggregation,
    ledger: DivergenceLedger,
    replica: Node,
    aggregators: Sequence[Node],
    now_s: float,
    busy_until_s: float,
) -> Replication:
    """Return the transfers to the replica that start with this batch (section 5.3).

    `pending` are the updates that the replica lacks, in order: those punted before, then those of `server`, the batch's
    tentative schedule. The ledger has all of them. `busy_until_s` is when earlier transfers to the replica end. Updates
    that the bound requires are sent now, and so are those that arrive before the batch's last update is applied at the
    server. The rest is punted. Every update is checked (in the paper only the batch's last), since the replica may lag
    in the middle of a batch and catch up at its end.
    """
    scheduled = len(ledger) - sum(len(group.updates) for group in server.groups)
    needed = [ledger.needed(position) for position in _positions(scheduled, server.groups)[1:]]
    # The replica will have `start` updates when all transfers in flight to it have arrived.
    start = len(ledger) - len(pending)
    weights = ledger.weights(start)
    groups = aggregate(pending, server.network, replica, aggregators, now_s, busy_until_s, weights, ledger.bound).groups
    reached = _positions(start, groups)
    most, frozen, kept = max(needed, default=0), 0, 0
    while frozen < len(groups) and (reached[frozen] < most or groups[frozen].applied_s <= server.end_s):
        frozen += 1
    for group, need in zip(server.groups, needed, strict=True):
        if need > start and groups[bisect_left(reached, need) - 1].applied_s > group.applied_s:
            break
        kept += 1
    return Replication(groups[:frozen], tuple(pending[reached[frozen] - start :]), tuple(needed), kept)


def _positions(start: int, groups: Sequence[Group]) -> list[int]:
    """Return the number of updates before the first group and after each group."""
    return list(accumulate((len(group.updates) for group in groups), initial=start))
