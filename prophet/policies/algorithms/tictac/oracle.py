"""Time oracles: how many seconds an operation takes with its resource to itself (TicTac, section 3).

Rule of this file: from an operation to a number of seconds; no graph, no order.
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from prophet.core.errors import UserError
from prophet.core.graph import Operation, OperationKind
from prophet.core.network import Network


class TimeOracle(Protocol):
    """The paper's Time(op): seconds of one operation, 0 or more."""

    def __call__(self, operation: Operation, /) -> float: ...


class Statistic(enum.StrEnum):
    """Which of several runs stands for an operation. The paper takes the least (section 5, "Time Oracle")."""

    LEAST = "least"
    MEDIAN = "median"


def general_time(operation: Operation) -> float:
    """Eq. 6, the oracle of TIO: 1 for a transfer, 0 for computing."""
    return 1.0 if operation.kind is OperationKind.TRANSFER else 0.0


def graph_time(network: Network | None = None) -> TimeOracle:
    """What the graph itself says: `time_s` for computing, and `size_bytes` on `network` for a transfer.

    Without a network a transfer takes its own `time_s`.
    """

    def time_s(operation: Operation) -> float:
        if network is not None and operation.kind is OperationKind.TRANSFER:
            return network.transfer_s(operation.size_bytes)
        return operation.time_s

    return time_s


def measured_time(
    runs: Mapping[str, Sequence[float]],
    statistic: Statistic = Statistic.LEAST,
    otherwise: TimeOracle | None = None,
) -> TimeOracle:
    """From measured runs: `runs[name]` are the seconds that operation `name` took, in any order.

    An operation that was not measured gets its time from `otherwise`. Raises UserError for an impossible time, and
    the oracle raises it for an operation that has neither.
    """
    choose: Callable[[Sequence[float]], float] = min if statistic is Statistic.LEAST else statistics.median
    known: dict[str, float] = {}
    for name, times in runs.items():
        if not times:
            raise UserError(f"measured times: operation {name!r} has no runs; leave it out or give at least one")
        if not all(math.isfinite(time) and time >= 0 for time in times):
            raise UserError(f"measured times: operation {name!r} has an impossible time; give 0 or more seconds")
        known[name] = choose(times)

    def time_s(operation: Operation) -> float:
        if operation.name in known:
            return known[operation.name]
        if otherwise is None:
            raise UserError(f"measured times: operation {operation.name!r} was not measured; measure it")
        return otherwise(operation)

    return time_s
