"""Time oracles: the seconds that an operation takes if it has its resource to itself (TicTac, section 3).

Rule of this file: from an operation to a number of seconds; no graph, no order.
"""

from __future__ import annotations

from typing import Protocol

from prophet_scheduler.core.graph import Operation, OperationKind
from prophet_scheduler.core.network import Network


class TimeOracle(Protocol):
    """The paper's Time(op): seconds of one operation, 0 or more."""

    def __call__(self, operation: Operation, /) -> float: ...


def general_time(operation: Operation) -> float:
    """Return 1 for a transfer, 0 for compute: Eq. 6, the oracle of TIO."""
    return 1.0 if operation.kind is OperationKind.TRANSFER else 0.0


def graph_time(network: Network | None = None) -> TimeOracle:
    """Return the oracle of the graph's own times: `time_s` for compute, `size_bytes` on `network` for a transfer.

    Without a network, a transfer takes its own `time_s`.
    """

    def time_s(operation: Operation) -> float:
        if network is not None and operation.kind is OperationKind.TRANSFER:
            return network.transfer_s(operation.size_bytes)
        return operation.time_s

    return time_s
