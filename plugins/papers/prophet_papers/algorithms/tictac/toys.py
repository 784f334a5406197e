"""The paper's two extreme models (TicTac, section 6): Par-32, where order does not matter, and Seq-32.

Rule of this file: small synthetic graphs; frameworks' models are in prophet_scheduler/models.
"""

from __future__ import annotations

from prophet_scheduler.core.graph import Graph, Operation, OperationKind


def flat_graph(layers: int = 32, size_bytes: int = 2 << 20, time_s: float = 0.0) -> Graph:
    """Return Par-32: `layers` parallel operations, each with its own parameter. All orders are equally good.

    The 2 MiB per parameter are from the authors' published code; the paper gives no size.
    """
    return _toy(f"par-{layers}", layers, size_bytes, time_s, chained=False)


def sequential_graph(layers: int = 32, size_bytes: int = 2 << 20, time_s: float = 0.0) -> Graph:
    """Return Seq-32: the same operations in a chain, like a recurrent model. Only one order is best."""
    return _toy(f"seq-{layers}", layers, size_bytes, time_s, chained=True)


def _toy(name: str, layers: int, size_bytes: int, time_s: float, chained: bool) -> Graph:
    operations = [Operation(f"parameter.{i}", OperationKind.TRANSFER, size_bytes=size_bytes) for i in range(layers)]
    for i in range(layers):
        before = (f"layer.{i - 1}",) if chained and i else ()
        operations.append(Operation(f"layer.{i}", OperationKind.COMPUTE, (*before, f"parameter.{i}"), time_s))
    return Graph(name, tuple(operations))
