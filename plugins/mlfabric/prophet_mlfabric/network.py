"""Bandwidth of every NIC over time, and the end of a transfer on it (MLfabric, section 5.1, figure 4).

Rule of this file: bandwidths, transfers and reservations. It knows nothing of updates, servers or orders.

The core is never congested, so a transfer's path is the uplink of its source and the downlink of its destination. A
link is a step function of time: the bytes per second left. A transfer always takes the whole rate of the narrower of
its two links (figure 4b). A reservation subtracts that rate from both links (figure 4c).

Links are immutable. A reservation replaces two of them, so copying a state or undoing a reservation costs nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from prophet_scheduler.core.errors import UserError

Node: TypeAlias = int
"""Index in the list of nodes."""

Piece: TypeAlias = tuple[float, float, float]
"""Start and end of a part of a transfer (seconds), and its bytes per second."""

ROUNDING = 1e-12
"""Fraction of a link's rate or a transfer's size below which a remainder counts as zero."""


class Link:
    """Immutable step function: `rates[i]` bytes per second hold from `times[i]` to `times[i + 1]`.

    `times` begins with minus infinity, ends with infinity, and has one value more than `rates`. Neighbouring rates
    differ.
    """

    __slots__ = ("rates", "times")

    def __init__(self, times: list[float], rates: list[float]) -> None:
        self.times = times
        self.rates = rates

    @classmethod
    def constant(cls, rate: float) -> Link:
        return cls([-math.inf, math.inf], [rate])

    @classmethod
    def stepwise(cls, changes: Sequence[float], rates: Sequence[float]) -> Link:
        """Return the link with `rates[0]` until `changes[0]`, then `rates[1]` until `changes[1]`, and so on. `rates`
        has one value more than `changes`.
        """
        times, steps = [-math.inf], [rates[0]]
        for change, rate in zip(changes, rates[1:], strict=True):
            if rate != steps[-1]:
                times.append(change)
                steps.append(rate)
        return cls([*times, math.inf], steps)

    def first_free(self, since_s: float) -> float:
        """Return the first time from `since_s` on at which bandwidth is left; infinity if never."""
        begun = bisect_right(self.times, since_s) - 1
        return next((max(since_s, self.times[i]) for i in range(begun, len(self.rates)) if self.rates[i] > 0), math.inf)

    def most_since(self, since_s: float) -> float:
        """Return the highest rate from `since_s` on."""
        return max(self.rates[bisect_right(self.times, since_s) - 1 :])

    def without(self, pieces: Sequence[Piece]) -> Link:
        """Return this link less the pieces, which are in order; no piece may span a change of this link's rate."""
        times, rates = self.times, self.rates
        place = bisect_right(times, pieces[0][0]) - 1
        new_times, new_rates = times[:place], rates[:place]

        def step(begin: float, end: float, rate: float) -> None:
            if begin < end and (not new_rates or rate != new_rates[-1]):
                new_times.append(begin)
                new_rates.append(rate)

        cursor = times[place]
        for begin, end, rate in pieces:
            while times[place + 1] <= begin:
                step(cursor, times[place + 1], rates[place])
                place += 1
                cursor = times[place]
            step(cursor, begin, rates[place])
            left = rates[place] - rate
            step(begin, end, left if left > ROUNDING * rates[place] else 0.0)
            cursor = end
        step(cursor, times[place + 1], rates[place])
        place += 1
        if place < len(rates) and rates[place] == new_rates[-1]:
            place += 1
        return Link(new_times + times[place:], new_rates + rates[place:])

    def since(self, time_s: float) -> Link:
        """Return the link from `time_s` on, without its past."""
        place = bisect_right(self.times, time_s) - 1
        return self if place == 0 else Link([-math.inf, *self.times[place + 1 :]], self.rates[place:])


def end_of(up: Link, down: Link, size_bytes: float, start_s: float, pieces: list[Piece] | None = None) -> float:
    """Return the end of a transfer over both links that starts at `start_s`: t_en of figure 4b, in seconds.

    Infinity if it never ends. Its parts are appended to `pieces`.
    """
    up_times, up_rates, down_times, down_rates = up.times, up.rates, down.times, down.rates
    i = bisect_right(up_times, start_s) - 1
    j = bisect_right(down_times, start_s) - 1
    now, left, nothing = start_s, size_bytes, ROUNDING * size_bytes
    while True:
        rate = up_rates[i] if up_rates[i] < down_rates[j] else down_rates[j]
        next_up, next_down = up_times[i + 1], down_times[j + 1]
        change = next_up if next_up < next_down else next_down
        if rate > 0:
            after = left - rate * (change - now)
            if after <= nothing:
                end = min(now + left / rate, change)
                if pieces is not None and end > now:
                    pieces.append((now, end, rate))
                return end
            left = after
            if pieces is not None:
                pieces.append((now, change, rate))
        if change == math.inf:
            return math.inf
        now = change
        if next_up == change:
            i += 1
        if next_down == change:
            j += 1


def bytes_after(pieces: Iterable[Piece], now_s: float) -> float:
    """Return the bytes of a transfer's parts from `now_s` on."""
    return sum(rate * (end - max(begin, now_s)) for begin, end, rate in pieces if end > now_s)


class NetworkState:
    """Bandwidth left on the NICs of nodes 0 to n - 1; NW in Algorithms 1 to 3."""

    __slots__ = ("downlinks", "uplinks")

    def __init__(self, uplinks: Iterable[Link], downlinks: Iterable[Link]) -> None:
        """Both lists have one link for each node."""
        self.uplinks = list(uplinks)
        self.downlinks = list(downlinks)

    @classmethod
    def of_rates(cls, up: Sequence[float], down: Sequence[float]) -> NetworkState:
        """Return a network of constant rates in bytes per second, above 0; each list has one per node."""
        return cls(map(Link.constant, up), map(Link.constant, down))

    def __len__(self) -> int:
        return len(self.uplinks)

    def end(self, source: Node, destination: Node, size_bytes: float, start_s: float) -> float:
        """Return t_en, the end of a transfer. A transfer within a node takes no time."""
        return self.pieces(source, destination, size_bytes, start_s)[0]

    def pieces(self, source: Node, destination: Node, size_bytes: float, start_s: float) -> tuple[float, list[Piece]]:
        """Return the end of a transfer and its parts; no parts if it never ends."""
        pieces: list[Piece] = []
        if source == destination:
            return start_s, pieces
        end = end_of(self.uplinks[source], self.downlinks[destination], size_bytes, start_s, pieces)
        return end, pieces if end < math.inf else []

    def take(self, source: Node, destination: Node, pieces: Sequence[Piece]) -> None:
        """Subtract `pieces` of a transfer between these nodes from both links: NetUp (figure 4c)."""
        if pieces:
            self.uplinks[source] = self.uplinks[source].without(pieces)
            self.downlinks[destination] = self.downlinks[destination].without(pieces)

    def reserve(self, source: Node, destination: Node, size_bytes: float, start_s: float) -> float:
        """Reserve a transfer and return its end. Raises UserError if it would never end."""
        end, pieces = self.pieces(source, destination, size_bytes, start_s)
        if end == math.inf:
            raise UserError(
                f"a transfer from node {source} to node {destination} never ends: give both a positive rate"
            )
        self.take(source, destination, pieces)
        return end

    def copy(self) -> NetworkState:
        return NetworkState(self.uplinks, self.downlinks)

    def forget(self, before_s: float) -> None:
        """Drop the past, so that links do not grow while a job runs."""
        self.uplinks = [link.since(before_s) for link in self.uplinks]
        self.downlinks = [link.since(before_s) for link in self.downlinks]
