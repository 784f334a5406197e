"""True timing of scheduled transfers, and the part of it that the scheduler may know (MLfabric, section 4).

Rule of this file: transfers in, their true ends out. It applies nothing and decides nothing.

A schedule is carried out by reserving its transfers, in order, in the true network: each always gets the bandwidth that
earlier ones leave. The scheduler's view is computed for every batch: the rates that the monitor has reported, less the
rest of the transfers in flight.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from prophet_mlfabric.network import NetworkState, Node, Piece
from prophet_mlfabric.studies.settings import Rates


@dataclass(frozen=True, eq=False)
class Sent:
    """A transfer that was sent. It cannot begin before those in `after` have ended."""

    source: Node
    destination: Node
    after: tuple[Sent, ...]
    pieces: list[Piece]
    end_s: float

    def left_bytes(self, now_s: float) -> float:
        return sum(rate * (end - max(begin, now_s)) for begin, end, rate in self.pieces if end > now_s)


class Wire:
    """True network of a job and the transfers on it."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._true = rates.network()
        self._under_way: list[Sent] = []

    def send(
        self, source: Node, destination: Node, size_bytes: float, now_s: float, after: Sequence[Sent] = ()
    ) -> Sent:
        """Send a transfer once those in `after` have ended, with lower priority than all sent before it."""
        start = max((sent.end_s for sent in after), default=now_s)
        end, pieces = self._true.pieces(source, destination, size_bytes, max(now_s, start))
        self._true.take(source, destination, pieces)
        sent = Sent(source, destination, tuple(after), pieces, end)
        self._under_way.append(sent)
        return sent

    def believed(self, now_s: float) -> tuple[NetworkState, dict[Node, float]]:
        """Return the network that the scheduler plans with, and when it expects all transfers in flight to each node to
        end; minus infinity if there are none.
        """
        self._true.forget(now_s)
        self._under_way = [sent for sent in self._under_way if sent.end_s > now_s]
        network = self._rates.reported(now_s)
        ends: dict[Sent, float] = {}
        until: dict[Node, float] = defaultdict(lambda: -math.inf)
        for sent in self._under_way:
            start = max((ends.get(other, now_s) for other in sent.after), default=now_s)
            ends[sent] = network.reserve(sent.source, sent.destination, sent.left_bytes(now_s), start)
            until[sent.destination] = max(until[sent.destination], ends[sent])
        return network, until
