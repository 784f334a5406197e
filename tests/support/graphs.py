"""Small graphs for the tests of orders: parameters to receive, and operations that wait for them."""

from __future__ import annotations

from collections.abc import Mapping

from prophet_scheduler.core.graph import Graph, Operation, OperationKind


def graph(transfers: Mapping[str, int], computing: Mapping[str, tuple[float, str]], name: str = "test") -> Graph:
    """Return a graph. `transfers`: seconds at one byte per second. `computing`: seconds, and the inputs as one text."""
    return Graph(
        name,
        (
            *(Operation(key, OperationKind.TRANSFER, size_bytes=size) for key, size in transfers.items()),
            *(
                Operation(key, OperationKind.COMPUTE, tuple(inputs.split()), time_s)
                for key, (time_s, inputs) in computing.items()
            ),
        ),
    )
