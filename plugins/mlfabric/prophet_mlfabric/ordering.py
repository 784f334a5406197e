"""Order of updates to the server, and the updates that are dropped (MLfabric, section 5.1, Algorithms 1 and 2).

Rule of this file: from a batch of updates and the network's state to an order. Aggregation and replication follow.
docs/policies/mlfabric.md lists the differences from the paper.

Algorithm 1 repeatedly takes the update whose transfer would end first, and reserves it. Algorithm 2 adds deadlines,
dl(g) = v(g) + tau_max - v_init (Eq. 9): the last position in the batch at which g may be applied. An update at its last
position is taken even if others are shorter. If the next update would end before it, it is dropped at its worker
(section 5.1.3), since the server would have to wait for it or apply it too late. The algorithm looks one update ahead.
If that update is dropped later, the one after it is applied with the kept update, still at its own position. Ties go to
the worker that is faster on an idle network, then to the update that is earlier in the batch.

Cost: the paper evaluates every remaining update in every round, which is quadratic. Two lower bounds leave few to
evaluate. End times only grow as bandwidth is reserved, so an old value bounds the new one. And no transfer ends sooner
than at its worker's full rate from the time when the server's link has bandwidth left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from prophet_mlfabric.network import NetworkState, Node, Piece, end_of


@dataclass(frozen=True)
class Update:
    """An update that is ready at a worker.

    `node` is its worker's node, `size_bytes` the bytes to send, `version` the version of the model from which it was
    computed (v(g)), and `norm` its Euclidean norm (section 4: workers give it with the push).
    """

    id: int
    node: Node
    size_bytes: float
    version: int = 0
    norm: float = 1.0


class Ordering(NamedTuple):
    """Order O(U) of the updates, and the dropped updates."""

    updates: tuple[Update, ...]
    dropped: tuple[Update, ...]


def order_updates(
    updates: Sequence[Update],
    network: NetworkState,
    server: Node,
    now_s: float,
    delay_bound: int | None = None,
    version: int = 0,
) -> Ordering:
    """Return the order with deadlines (Algorithm 2), or without (Algorithm 1). `network` is unchanged.

    `delay_bound` is tau_max; None for no bound. `version` is v_init, the model's version once every earlier batch is
    applied. An update at position p of the order (from 1) has the delay version + p - v(g), which is within the bound.
    Transfers start at `now_s` or later. Versions may be equal. A transfer of 0 bytes takes no time.
    """
    # A deadline after the last position has no effect.
    deadlines = [len(updates) + 1 if delay_bound is None else u.version + delay_bound - version for u in updates]
    return _Round(updates, network, server, now_s, deadlines).order()


class _Round:
    """One run of Algorithm 2. Updates are indices into the batch."""

    def __init__(
        self, updates: Sequence[Update], network: NetworkState, server: Node, now_s: float, deadlines: Sequence[int]
    ) -> None:
        self.updates, self.network, self.server, self.now_s = updates, network.copy(), server, now_s
        count = len(updates)
        rates = {node: network.uplinks[node].most_since(now_s) for node in {update.node for update in updates}}
        # Duration of each update at its node's full rate: a lower bound whatever is reserved. Updates at the server's
        # node arrive before any other.
        self.alone = [-math.inf if u.node == server else u.size_bytes / rates[u.node] for u in updates]
        self.ends = [0.0] * count
        self.candidates = sorted(range(count), key=lambda place: (self.alone[place], place))
        due = np.clip(np.array(deadlines, int), 0, count + 1)
        self.deadlines: list[int] = due.tolist()
        self.slack = np.arange(count + 1) - np.cumsum(np.bincount(due, minlength=count + 2))[: count + 1]
        """Number of positions up to d that no deadline needs, for d = 0 to n."""

    def order(self) -> Ordering:
        dropped = self._drop_hopeless()
        order: list[Update] = []
        known: tuple[int, float, list[Piece]] | None = None
        while self.candidates:
            forced = self._forced(len(order) + 1)
            place, end, pieces = known or self._shortest(forced)
            known = None
            self.candidates.remove(place)
            node = self.updates[place].node
            before = self.network.uplinks[node], self.network.downlinks[self.server], self.ends.copy()
            self.network.take(node, self.server, pieces)
            # One position fewer for all; from its own deadline on, also one update fewer that needs a position.
            self.slack[: self.deadlines[place]] -= 1
            # No update can overtake the shortest of all, so looking ahead is only worth it after a forced choice.
            if forced is not None and self.candidates:
                known = self._shortest(self._forced(len(order) + 2))
                if end > known[1]:
                    self.network.uplinks[node], self.network.downlinks[self.server], self.ends = before
                    self.slack += 1  # it takes no position after all
                    dropped.append(self.updates[place])
                    known = None
                    continue
            order.append(self.updates[place])
        return Ordering(tuple(order), tuple(dropped))

    def _shortest(self, deadline: int | None) -> tuple[int, float, list[Piece]]:
        """Return the update that ends first, its end, and the parts of its transfer (ShrtUp). With a `deadline`, choose
        only among those due by it.
        """
        uplinks, down = self.network.uplinks, self.network.downlinks[self.server]
        updates, ends, alone, deadlines = self.updates, self.ends, self.alone, self.deadlines
        free_s, best, best_end = down.first_free(self.now_s), -1, math.inf
        for place in self.candidates:
            if deadline is not None and deadlines[place] > deadline:
                continue
            update = updates[place]
            if best >= 0 and free_s + alone[place] >= best_end:
                break
            if ends[place] >= best_end:
                continue
            local = update.node == self.server
            end = self.now_s if local else end_of(uplinks[update.node], down, update.size_bytes, self.now_s)
            ends[place] = end
            if end < best_end or best < 0:
                best, best_end = place, end
        chosen = updates[best]
        end, pieces = self.network.pieces(chosen.node, self.server, chosen.size_bytes, self.now_s)
        return best, end, pieces

    def _drop_hopeless(self) -> list[Update]:
        """Drop and return updates that must be late in any order."""

        def ends(place: int) -> tuple[float, int]:
            update = self.updates[place]
            return self.network.end(update.node, self.server, update.size_bytes, self.now_s), place

        dropped: list[Update] = []
        while (late := np.flatnonzero(self.slack < 0)).size:
            place = max((place for place in self.candidates if self.deadlines[place] <= late[0]), key=ends)
            self.candidates.remove(place)
            self.slack[self.deadlines[place] :] += 1
            dropped.append(self.updates[place])
        return dropped

    def _forced(self, position: int) -> int | None:
        """Return the deadline by which the update at `position` must be due; None if any update may go there."""
        tight = np.flatnonzero(self.slack[position:] == 0)
        return position + int(tight[0]) if tight.size else None
