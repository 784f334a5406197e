"""Start times of the pushes that the coordinator has planned.

Rule of this file: pushes, the network's rates and the time in; starts out. ordering.py decides the order, and
coordination.py tells the workers.

A real network does not follow the scheduler's reservations (MLfabric, section 5.1.1), so only the order is final here.
Starts are computed again after every event: first the rest of the pushes in flight, then the planned ones in order. A
late push keeps its bandwidth until it has taken twice its expected time.

An engine does not get the whole rate of a NIC, so the slowdown is learned from the newest pushes. A push that takes
much longer or shorter than that shows another rate of its worker's NIC. If it shared the server's link, the NIC has
this rate or more: twice as much is believed, and a later push alone corrects it.

The delay bound needs no reservations. A push has at most the delay

    (updates applied + all updates in flight) - its version

whichever push in flight ends last. So a push starts only if this stays within tau_max for all of these, and for earlier
planned ones that have yet to start. The sum in parentheses does not change when a push ends. A push that is in time at
its start is therefore in time at its end: the bound holds on any network (Eq. 9).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from prophet_mlfabric.network import NetworkState, Node, Piece, bytes_after
from prophet_mlfabric.ordering import Update

LEAD_S = 2e-3
"""Seconds by which a grant precedes its start, so that it reaches the worker before the wire is idle."""
LOOKED_AT = 32
"""Number of the next pushes whose starts are computed; later ones start no earlier."""
LEARNED_FROM = 15
"""Number of newest pushes over which the median slowdown is taken."""
SLOWNESS = (0.5, 8.0)
"""Bounds on the slowdown."""
USUAL = 1.5
"""Factor within which the duration of a push says nothing of its NIC."""
LEAST_LEARNED_S = 1e-3
"""Minimum expected seconds of a push to learn from: shorter ones depend on messages more than on rates."""


@dataclass(eq=False)
class Push:
    """Update `number` of a worker, from its request to its end. Times in seconds, on the caller's clock.

    `begin_s` and `end_s` are expected times, and `pieces` the bandwidth used between them. `started_s` is None before
    the grant; `expected_s` is the duration expected at the grant, with this `slowness`, and `shared` is True if another
    push was in flight in this time.
    """

    worker: int
    number: int
    update: Update
    asked_s: float
    started_s: float | None = None
    expected_s: float = 0.0
    slowness: float = 1.0
    shared: bool = False
    begin_s: float = math.inf
    end_s: float = math.inf
    pieces: list[Piece] = field(default_factory=list)

    def left_bytes(self, now_s: float) -> float:
        """Return the estimate of bytes left. A late push is expected to need as long again as it is late."""
        if now_s < self.end_s:
            return bytes_after(self.pieces, now_s)
        took_s, late_s = self.end_s - (self.started_s or 0.0), now_s - self.end_s
        return self.update.size_bytes * late_s / (took_s + late_s) if 0.0 < late_s < took_s else 0.0


class Timetable:
    """Planned pushes to `server` in order, and pushes in flight (`under_way`)."""

    def __init__(self, server: Node, delay_bound: int | None) -> None:
        self._server = server
        self._delay_bound = math.inf if delay_bound is None else delay_bound
        self.planned: list[Push] = []
        self.under_way: list[Push] = []
        self.next_s = math.inf
        """Time at which `due` will return something if no event comes before."""
        self.slowness = 1.0
        """Typical duration of a push as a multiple of its duration by the rates."""
        self._slowness: deque[float] = deque(maxlen=LEARNED_FROM)
        self.busy_until_s = -math.inf
        """Time at which the server will have received all booked pushes."""

    def book(self, rates: NetworkState, now_s: float, most: int | None = LOOKED_AT) -> NetworkState:
        """Compute the next `most` starts (None: all) from `rates`, which are unchanged.

        Return the bandwidth that these pushes leave.
        """
        network = rates.copy()
        self.busy_until_s = -math.inf

        def reserve(push: Push, size_bytes: float, start_s: float) -> tuple[float, list[Piece]]:
            end, pieces = network.pieces(push.update.node, self._server, size_bytes, start_s)
            network.take(push.update.node, self._server, pieces)
            self.busy_until_s = max(self.busy_until_s, end)
            return end, pieces

        for push in self.under_way:
            end, pieces = reserve(push, push.left_bytes(now_s), max(now_s, push.started_s or now_s))
            if now_s < push.end_s:  # a late push keeps the end that it missed
                push.end_s, push.pieces = end, pieces
        for push in self.planned[:most]:
            push.end_s, push.pieces = reserve(push, push.update.size_bytes * self.slowness, now_s)
            push.begin_s = push.pieces[0][0] if push.pieces else now_s
        return network

    def due(self, version: int, now_s: float) -> tuple[list[Push], list[Push]]:
        """Return the planned pushes that may start now, and those that can no longer keep the delay bound.

        `version` counts the updates applied. All stay planned until `start` or `withdraw`.
        """
        starting: list[Push] = []
        hopeless: list[Push] = []
        in_all = version + len(self.under_way)
        tightest = min((self._limit(push) for push in self.under_way), default=math.inf)
        # `room` bounds the updates applied or in flight, so that planned pushes passed over here stay in time.
        passed_over, room = 0, math.inf
        self.next_s = math.inf
        for push in self.planned[:LOOKED_AT]:
            limit = self._limit(push)
            if in_all + 1 > limit:
                hopeless.append(push)
                continue
            soon, allowed = push.begin_s <= now_s + LEAD_S, in_all + 1 <= min(tightest, room)
            if soon and allowed:
                in_all, tightest = in_all + 1, min(tightest, limit)
                starting.append(push)
                continue
            passed_over += 1
            room = min(room, limit - passed_over)
            if allowed:
                self.next_s = min(self.next_s, push.begin_s - LEAD_S)
        return starting, hopeless

    def _limit(self, push: Push) -> float:
        """Return the maximum number of updates applied and in flight that keeps tau_max for this one."""
        return self._delay_bound + push.update.version

    def start(self, push: Push, now_s: float) -> None:
        """Record that a push was granted at `now_s`."""
        self.planned.remove(push)
        push.started_s = max(now_s, push.begin_s)
        push.expected_s, push.slowness = push.end_s - push.begin_s, self.slowness
        for other in self.under_way:
            push.shared = True
            other.shared = other.shared or now_s < (other.started_s or 0.0) + other.expected_s
        self.under_way.append(push)

    def learned(self, push: Push, now_s: float, believed: float) -> float:
        """Learn from the duration of a push that has ended. Return the rate of its NIC, in bytes per second: `believed`
        if this has not shown another.
        """
        if push.started_s is None or push.expected_s < LEAST_LEARNED_S or now_s <= push.started_s:
            return believed
        longer = (now_s - push.started_s) / push.expected_s
        rate = max(1.0, push.update.size_bytes * push.slowness / (now_s - push.started_s))
        self._slowness.append(longer * push.slowness)
        low, high = SLOWNESS
        self.slowness = min(high, max(low, statistics.median(self._slowness)))
        if 1 / USUAL < longer < USUAL:
            return believed
        return max(believed, 2 * rate) if push.shared else rate

    def withdraw(self, push: Push) -> None:
        """Remove a push."""
        for pushes in (self.planned, self.under_way):
            if push in pushes:
                pushes.remove(push)
