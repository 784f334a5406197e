"""Start times of the transfers that the coordinator has planned.

Rule of this file: transfers, the network's rates and the time in; starts out. scheduler.py decides the transfers, and
coordination.py tells the workers.

A real network does not follow the scheduler's reservations (MLfabric, section 5.1.1), so only the order of a schedule
is final here. Starts are computed again after every event: first the rest of the transfers in flight, then the planned
ones in order. A late transfer keeps its bandwidth until it has taken twice its expected time. An engine does not get
the whole rate of a NIC, so the slowdown is learned from the newest transfers.

The delay bound needs no reservations. Update i (from 0) of a transfer with k updates has at most the delay

    (updates applied + all updates in flight to the server) - (k - 1 - i) - v(i)

whichever transfer in flight ends last. So a transfer starts only if this stays within tau_max for all of these, and for
earlier planned ones that have yet to start. The sum in parentheses does not change when a transfer ends. A transfer
that is in time at its start is therefore in time at its end: the bound holds on any network (Eq. 9).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence

from prophet_mlfabric.network import NetworkState, Node, Piece
from prophet_mlfabric.scheduler import PlannedTransfer

LEAD_S = 2e-3
"""Seconds by which a grant precedes its start, so that it reaches the worker before the wire is idle."""
LOOKED_AT = 32
"""Number of the next transfers whose starts are computed; later ones start no earlier."""
LEARNED_FROM = 15
"""Number of newest transfers over which the median slowdown is taken."""
SLOWNESS = (0.5, 8.0)
"""Bounds on the slowdown."""
LEAST_LEARNED_S = 1e-3
"""Minimum expected seconds of a transfer to learn from: shorter ones depend on messages more than on rates."""


class Timetable:
    """Planned transfers in order, and transfers in flight (`under_way`)."""

    def __init__(self, server: Node, delay_bound: int | None) -> None:
        self._server, self._delay_bound = server, delay_bound
        self.planned: list[PlannedTransfer] = []
        self.under_way: list[PlannedTransfer] = []
        self.next_s = math.inf
        """Time at which `due` will return something if no event comes before."""
        self.slowness = 1.0
        """Typical duration of a transfer as a multiple of its duration by the rates."""
        self.busy_until_s = -math.inf
        """Time at which the server will have received all booked transfers."""
        self._slowness: deque[float] = deque(maxlen=LEARNED_FROM)

    @property
    def outstanding(self) -> int:
        """Number of updates planned or in flight to the server, which v_init counts in addition to applied ones."""
        return sum(len(transfer.updates) for transfer in (*self.under_way, *self.planned) if transfer.commits)

    def book(self, rates: NetworkState, now_s: float, most: int | None = LOOKED_AT) -> NetworkState:
        """Compute the next `most` starts (None: all) from `rates`, which are unchanged.

        Return the bandwidth that these transfers leave.
        """
        network = rates.copy()
        ends: dict[int, float] = {}
        self.busy_until_s = -math.inf

        def reserve(transfer: PlannedTransfer, size_bytes: float, start_s: float) -> tuple[float, list[Piece]]:
            end, pieces = network.pieces(transfer.source, transfer.destination, size_bytes, start_s)
            network.take(transfer.source, transfer.destination, pieces)
            ends[id(transfer)] = end
            if transfer.destination == self._server:
                self.busy_until_s = max(self.busy_until_s, end)
            return end, pieces

        for transfer in self.under_way:
            end, pieces = reserve(transfer, transfer.left_bytes(now_s), max(now_s, transfer.started_s or now_s))
            if now_s < transfer.end_s:  # a late transfer keeps the end that it missed
                transfer.end_s, transfer.pieces = end, pieces
        for transfer in self.planned[:most]:
            start = max((ends.get(id(earlier), now_s) for earlier in transfer.after), default=now_s)
            if not transfer.ready and start <= now_s:
                # Its aggregator is late: the wire does not wait for it.
                transfer.begin_s = now_s
                continue
            transfer.end_s, transfer.pieces = reserve(transfer, transfer.size_bytes * self.slowness, start)
            transfer.begin_s = transfer.pieces[0][0] if transfer.pieces else start
        return network

    def due(self, version: int, now_s: float) -> tuple[list[PlannedTransfer], list[PlannedTransfer]]:
        """Return the planned transfers that may start now, and those that can no longer keep the delay bound.

        `version` counts the updates applied. All stay planned until `start` or `withdraw`.
        """
        starting: list[PlannedTransfer] = []
        hopeless: list[PlannedTransfer] = []
        in_all = version + sum(len(transfer.updates) for transfer in self.under_way if transfer.commits)
        tightest = min((self._limit(transfer) for transfer in self.under_way), default=math.inf)
        # `room` bounds the updates applied or in flight, so that planned transfers passed over here stay in time.
        passed_over, room = 0, math.inf
        self.next_s = math.inf
        for transfer in self.planned[:LOOKED_AT]:
            soon, allowed = transfer.ready and transfer.begin_s <= now_s + LEAD_S, True
            if transfer.commits:
                limit, after = self._limit(transfer), in_all + len(transfer.updates)
                if after > limit:
                    hopeless.append(transfer)
                    continue
                allowed = after <= min(tightest, room)
                if soon and allowed:
                    in_all, tightest = after, min(tightest, limit)
                else:
                    passed_over += len(transfer.updates)
                    room = min(room, limit - passed_over)
            if soon and allowed:
                starting.append(transfer)
            elif transfer.ready and allowed:
                self.next_s = min(self.next_s, transfer.begin_s - LEAD_S)
        return starting, hopeless

    def _limit(self, transfer: PlannedTransfer) -> float:
        """Return the maximum number of updates applied and in flight that keeps tau_max for each of its updates."""
        if self._delay_bound is None or not transfer.commits:
            return math.inf
        last = len(transfer.updates) - 1
        return self._delay_bound + min(update.version + last - place for place, update in enumerate(transfer.updates))

    def start(self, transfer: PlannedTransfer, now_s: float) -> None:
        """Record that a transfer was granted at `now_s`."""
        self.planned.remove(transfer)
        transfer.started_s = max(now_s, transfer.begin_s)
        transfer.rated_s = (transfer.end_s - transfer.begin_s) / self.slowness
        self.under_way.append(transfer)

    def ended(self, transfer: PlannedTransfer, now_s: float) -> None:
        """Record that a transfer has ended at `now_s`, and learn from its duration."""
        if transfer.started_s is not None and transfer.rated_s >= LEAST_LEARNED_S and transfer in self.under_way:
            self._slowness.append((now_s - transfer.started_s) / transfer.rated_s)
            low, high = SLOWNESS
            self.slowness = min(high, max(low, statistics.median(self._slowness)))
        self.withdraw(transfer)

    def withdraw(self, transfer: PlannedTransfer) -> None:
        """Remove a transfer without learning from it."""
        for transfers in (self.planned, self.under_way):
            if transfer in transfers:
                transfers.remove(transfer)

    def overdue(self, since_s: float) -> Sequence[PlannedTransfer]:
        """Return the transfers whose expected end was before `since_s`."""
        return [transfer for transfer in self.under_way if transfer.end_s < since_s]
