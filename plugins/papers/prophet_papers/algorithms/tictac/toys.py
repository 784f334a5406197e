"""The paper's two extreme models (TicTac, section 6): Par-32, where order is worth nothing, and Seq-32.

Rule of this file: small graphs made of numbers; models of a framework are those of models.
"""

from __future__ import annotations

from prophet_scheduler.core.graph import Graph, Operation, OperationKind


def flat_graph(layers: int = 32, size_bytes: int = 2 << 20, time_s: float = 0.0) -> Graph:
    """Par-32: `layers` operations side by side, each with a parameter of its own. Every order is the best.

    2 MiB a parameter is what the authors' published code uses; the paper does not say.
    """
    return _toy(f"par-{layers}", layers, size_bytes, time_s, chained=False)


def sequential_graph(layers: int = 32, size_bytes: int = 2 << 20, time_s: float = 0.0) -> Graph:
    """Seq-32: the same one after another, like a recurrent model. One order of all is the best."""
    return _toy(f"seq-{layers}", layers, size_bytes, time_s, chained=True)


def _toy(name: str, layers: int, size_bytes: int, time_s: float, chained: bool) -> Graph:
    operations = [Operation(f"parameter.{i}", OperationKind.TRANSFER, size_bytes=size_bytes) for i in range(layers)]
    for i in range(layers):
        before = (f"layer.{i - 1}",) if chained and i else ()
        operations.append(Operation(f"layer.{i}", OperationKind.COMPUTE, (*before, f"parameter.{i}"), time_s))
    return Graph(name, tuple(operations))
