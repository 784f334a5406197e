"""Small graphs for the tests of orders: transfers, and operations that wait for them."""

from __future__ import annotations

from collections.abc import Mapping

from prophet_scheduler.core.graph import Graph, Operation, OperationKind


def graph(
    transfers: Mapping[str, int | tuple[int, str]], computing: Mapping[str, tuple[float, str]], name: str = "test"
) -> Graph:
    """Return a graph. `transfers`: seconds at one byte per second. `computing`: seconds. Both have their inputs as one
    text; a transfer may have none.
    """
    sized = {key: value if isinstance(value, tuple) else (value, "") for key, value in transfers.items()}
    return Graph(
        name,
        (
            *(
                Operation(key, OperationKind.TRANSFER, tuple(inputs.split()), size_bytes=size)
                for key, (size, inputs) in sized.items()
            ),
            *(
                Operation(key, OperationKind.COMPUTE, tuple(inputs.split()), time_s)
                for key, (time_s, inputs) in computing.items()
            ),
        ),
    )
