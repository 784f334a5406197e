"""Order of updates to the server, and the updates that are dropped (MLfabric, section 5.1, Algorithms 1 and 2).

Rule of this file: from a batch of updates and the network's state to an order. Aggregation and replication come after.
docs/policies/mlfabric.md names the differences from the paper.

Algorithm 1 repeatedly takes the update whose transfer would end first, and reserves it. Algorithm 2 adds deadlines,
dl(g) = v(g) + tau_max - v_init (Eq. 9): the last place of the batch at which g may be applied. An update at its last
place is taken even if others are shorter. If the next one would end before it, it is dropped at its worker (section
5.1.3), since the server would have to wait for it or apply it too late. The algorithm looks one update ahead. If that
one is dropped later, the one after it is applied with the kept update, still at its own place. Ties go to the worker
that is faster on its own, then to the update that comes first in the batch.

Cost: the paper evaluates every remaining update in every round, which is quadratic. Three lower bounds leave few to
evaluate. Ends only grow while bandwidth is taken, so an old value bounds the new one. No transfer ends sooner than at
its worker's full rate from the moment when the server has anything left. None ends sooner than its bytes take on the
server's link alone. The first update that meets a bound ends the search.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.network import FREE, Link, NetworkState, Node, Piece, end_of
from prophet_scheduler.core.errors import UserError


@dataclass(frozen=True)
class Update:
    """An update that is ready at a worker.

    `node` is its place, `size_bytes` the bytes that travel, `version` the version of the model from which it was
    computed (v(g)), and `norm` its Euclidean norm (section 4: workers give it with the push). Raises UserError if size
    or norm is negative or not a number.
    """

    id: int
    node: Node
    size_bytes: float
    version: int = 0
    norm: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.size_bytes < math.inf and 0 <= self.norm < math.inf):
            raise UserError(
                f"update {self.id}: {self.size_bytes} bytes with a norm of {self.norm}; give numbers of 0 or more"
            )


@dataclass(frozen=True)
class Ordered:
    """An update and the end of its transfer straight to the server, in seconds."""

    update: Update
    end_s: float


@dataclass(frozen=True)
class Ordering:
    """The order O(U), the dropped updates, and the network with all transfers of the order reserved."""

    order: tuple[Ordered, ...]
    dropped: tuple[Update, ...]
    network: NetworkState

    @property
    def updates(self) -> tuple[Update, ...]:
        return tuple(ordered.update for ordered in self.order)


def shortest_first(updates: Sequence[Update], network: NetworkState, server: Node, now_s: float) -> Ordering:
    """Return the order without deadlines (Algorithm 1). `network` stays unchanged."""
    return order_updates(updates, network, server, now_s, None, 0)


def order_updates(
    updates: Sequence[Update],
    network: NetworkState,
    server: Node,
    now_s: float,
    delay_bound: int | None,
    version: int,
) -> Ordering:
    """Return the order with deadlines (Algorithm 2). `network` stays unchanged.

    `delay_bound` is tau_max; None for no bound. `version` is v_init, the model's version once every earlier batch is
    applied. An update at place p of the order (from 1) is applied with the delay version + p - v(g), at most the bound.
    Transfers start at `now_s` or later. Versions may be equal and sizes any; a size of 0 ends at once.
    """
    return _Round(updates, network, server, now_s, delay_bound, version).order()


class _Round:
    """One run of Algorithm 2. Updates are places in the batch."""

    def __init__(
        self,
        updates: Sequence[Update],
        network: NetworkState,
        server: Node,
        now_s: float,
        delay_bound: int | None,
        version: int,
    ) -> None:
        self.updates = updates
        self.network = network.copy()
        self.server = server
        self.now_s = now_s
        count = len(updates)
        rates = {node: network.uplinks[node].most_since(now_s) for node in {update.node for update in updates}}
        # Best time of each at its own node, a lower bound whatever is reserved. Updates at the server's node are there
        # before any other.
        self.alone = [-math.inf if u.node == server else u.size_bytes / rates[u.node] for u in updates]
        self.ends = [0.0] * count
        self.candidates = sorted(range(count), key=lambda place: (self.alone[place], place))
        self.by_size = sorted(range(count), key=lambda place: -updates[place].size_bytes)
        self.gone = [False] * count
        self.deadlines: list[int] | None = None
        self.slack: NDArray[np.int64] = np.zeros(0, np.int64)
        if delay_bound is not None:
            self.deadlines = [update.version + delay_bound - version for update in updates]

    def order(self) -> Ordering:
        dropped = self._drop_hopeless() if self.deadlines is not None else []
        order: list[Ordered] = []
        known: tuple[int, float, list[Piece]] | None = None
        while self.candidates:
            forced = self._forced(len(order) + 1)
            place, end, pieces = known or self._shortest(forced)
            known = None
            self._remove(place)
            node = self.updates[place].node
            before = self.network.uplinks[node], self.network.downlinks[self.server], self.ends.copy()
            self.network.take(node, self.server, pieces)
            # The next update cannot overtake the shortest of all: only a deadline makes looking ahead worth it.
            if forced is not None and self.candidates:
                self._applied(place)
                known = self._shortest(self._forced(len(order) + 2))
                if end > known[1]:
                    self.network.uplinks[node], self.network.downlinks[self.server], self.ends = before
                    self._not_applied(place)
                    self._left_out(place)
                    dropped.append(place)
                    known = None
                    continue
            else:
                self._applied(place)
            order.append(Ordered(self.updates[place], end))
        return Ordering(tuple(order), tuple(self.updates[place] for place in dropped), self.network)

    def _shortest(self, deadline: int | None) -> tuple[int, float, list[Piece]]:
        """Return the update that ends first, its end and its parts; only those due by `deadline` if there is one
        (ShrtUp).
        """
        uplinks, down = self.network.uplinks, self.network.downlinks[self.server]
        updates, ends, alone, deadlines = self.updates, self.ends, self.alone, self.deadlines
        free_s = down.first_free(self.now_s)
        floor = self._floor(down)
        best, best_end = -1, math.inf
        for place in self.candidates:
            if deadline is not None and deadlines is not None and deadlines[place] > deadline:
                continue
            update = updates[place]
            local = update.node == self.server
            if best >= 0 and (free_s + alone[place] >= best_end or best_end <= floor):
                break
            if ends[place] >= best_end:
                continue
            end = self.now_s if local else end_of(uplinks[update.node], down, update.size_bytes, self.now_s)
            ends[place] = end
            if end < best_end or best < 0:
                best, best_end = place, end
        chosen = updates[best]
        end, pieces = self.network.pieces(chosen.node, self.server, chosen.size_bytes, self.now_s)
        return best, end, pieces

    def _floor(self, down: Link) -> float:
        """Return True if no remaining transfer ends sooner."""
        while self.by_size and self.gone[self.by_size[-1]]:
            self.by_size.pop()
        if not self.by_size:
            return self.now_s
        smallest = self.updates[self.by_size[-1]]
        return self.now_s if smallest.size_bytes <= 0 else end_of(FREE, down, smallest.size_bytes, self.now_s)

    def _remove(self, place: int) -> None:
        self.candidates.remove(place)
        self.gone[place] = True

    # Slack: number of free places up to d, for d = 1 to n. Deadlines after n bind nothing.

    def _drop_hopeless(self) -> list[int]:
        """Compute the slack and drop what cannot be in time in any order."""
        assert self.deadlines is not None
        count = len(self.updates)
        due = np.bincount(np.clip(np.array(self.deadlines, int), 0, count + 1), minlength=count + 2)
        self.slack = np.arange(count + 1) - np.cumsum(due)[: count + 1]
        dropped: list[int] = []
        while (late := np.flatnonzero(self.slack < 0)).size:
            limit = int(late[0])
            place = max(
                (place for place in self.candidates if self.deadlines[place] <= limit),
                key=lambda place: (
                    self.network.end(self.updates[place].node, self.server, self.updates[place].size_bytes, self.now_s),
                    place,
                ),
            )
            self._remove(place)
            self._left_out(place)
            dropped.append(place)
        return dropped

    def _forced(self, position: int) -> int | None:
        """Return the deadline by which the update at `position` has to be due; None if any may go there."""
        if self.deadlines is None:
            return None
        tight = np.flatnonzero(self.slack[position:] == 0)
        return position + int(tight[0]) if tight.size else None

    def _applied(self, place: int) -> None:
        """Use up a place: one fewer is left for everyone, and one fewer update waits for a place up to its own
        deadline.
        """
        if self.deadlines is not None:
            self.slack[: max(0, self.deadlines[place])] -= 1

    def _not_applied(self, place: int) -> None:
        if self.deadlines is not None:
            self.slack[: max(0, self.deadlines[place])] += 1

    def _left_out(self, place: int) -> None:
        if self.deadlines is not None:
            self.slack[max(0, self.deadlines[place]) :] += 1
