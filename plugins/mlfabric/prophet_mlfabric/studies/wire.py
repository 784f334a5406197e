"""True timing of scheduled transfers, and the part of it that the scheduler may know (MLfabric, section 4).

Rule of this file: transfers in, their true ends out. It applies nothing and decides nothing.

A schedule is carried out by reserving its transfers, in order, in the true network: each always gets the bandwidth that
earlier ones leave. The scheduler's view is computed for every batch: the rates that the monitor has reported, less the
rest of the transfers in flight.
"""

from __future__ import annotations

import math
from collections import defaultdict

from prophet_mlfabric.network import NetworkState, Node
from prophet_mlfabric.scheduler import PlannedTransfer
from prophet_mlfabric.studies.settings import Rates


class Wire:
    """True network of a job and the transfers on it."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._true = rates.network()
        self._under_way: list[PlannedTransfer] = []

    def send(self, transfer: PlannedTransfer, now_s: float) -> PlannedTransfer:
        """Send a transfer once those in `after` have ended, with lower priority than all sent before it. Return it with
        its true end and pieces.
        """
        start = max((earlier.end_s for earlier in transfer.after), default=now_s)
        source, destination = transfer.source, transfer.destination
        end, pieces = self._true.pieces(source, destination, transfer.size_bytes, max(now_s, start))
        self._true.take(source, destination, pieces)
        transfer.end_s, transfer.pieces = end, pieces
        self._under_way.append(transfer)
        return transfer

    def believed(self, now_s: float) -> tuple[NetworkState, dict[Node, float]]:
        """Return the network that the scheduler plans with, and when it expects all transfers in flight to each node to
        end; minus infinity if there are none.
        """
        self._true.forget(now_s)
        self._under_way = [transfer for transfer in self._under_way if transfer.end_s > now_s]
        network = self._rates.reported(now_s)
        ends: dict[PlannedTransfer, float] = {}
        until: dict[Node, float] = defaultdict(lambda: -math.inf)
        for transfer in self._under_way:
            start = max((ends.get(earlier, now_s) for earlier in transfer.after), default=now_s)
            end = network.reserve(transfer.source, transfer.destination, transfer.left_bytes(now_s), start)
            ends[transfer], until[transfer.destination] = end, max(until[transfer.destination], end)
        return network, until
