"""Making the best order of computing the only one (Caramel, section 4.1, stage 2).

Rule of this file: from a graph and an order to the same graph with more to wait for. Nothing is taken away, so what
the graph computes stays; the order is one that was allowed before.

Where the paper leaves something open:

- A dependency that follows from others is not added ("the minimal number of additional dependencies").
- A parameter that is ready together with the one before it has no free set; the end set stays that of the last
  parameter that needed computing.
- Operations that no parameter needs, such as the next forward pass or a metric, wait for the last end set, since "at
  each given time, only ops needed for the target parameter update can be executed".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prophet.core.graph import Graph, Operation
from prophet.policies.algorithms.caramel.ordering import ancestors, best_order, check_order, computing_bits, places


def enforce(graph: Graph, order: Sequence[str] | None = None) -> Graph:
    """`graph` with control dependencies added, so that its transfers become ready in `order`, and at the best times.

    `order` is `best_order(graph)` where it is not given. Raises UserError where it is no order of the transfers.
    """
    added = control_dependencies(graph, order)
    return Graph(
        graph.name,
        tuple(
            replace(operation, inputs=(*operation.inputs, *added.get(operation.name, ())))
            for operation in graph.operations
        ),
    )


def control_dependencies(graph: Graph, order: Sequence[str] | None = None) -> dict[str, tuple[str, ...]]:
    """What must be added: by operation, what else it is to wait for. Only operations that get something are there.

    Between the end set of each parameter (the operations that its update depends on directly) and the free set of the
    next one (the operations that it needs and that may start by then). Raises UserError as `enforce`.
    """
    order = check_order(graph, best_order(graph) if order is None else order)
    operations = graph.operations
    place = {operation.name: index for index, operation in enumerate(operations)}
    above, computing = ancestors(graph), computing_bits(graph)
    added: dict[str, tuple[str, ...]] = {}
    done, end = 0, 0
    for name in order:
        new = above[place[name]] & computing & ~done
        if not new:
            continue
        _wait(operations, above, place, new, end, added)
        done |= new
        end = _last(above, _direct(operations[place[name]], place) & new)
    _wait(operations, above, place, computing & ~done, end, added)
    return added


def _wait(
    operations: Sequence[Operation],
    above: Sequence[int],
    place: dict[str, int],
    needed: int,
    end: int,
    added: dict[str, tuple[str, ...]],
) -> None:
    """Lets the free set of `needed` wait for `end`, where it does not yet."""
    for index in places(needed):
        operation = operations[index]
        if _direct(operation, place) & needed:
            continue
        missing = end & ~above[index]
        if missing:
            added[operation.name] = tuple(operations[other].name for other in places(missing))


def _direct(operation: Operation, place: dict[str, int]) -> int:
    bits = 0
    for name in operation.inputs:
        bits |= 1 << place[name]
    return bits


def _last(above: Sequence[int], direct: int) -> int:
    """Of `direct`, those that no other of them waits for."""
    covered = 0
    for index in places(direct):
        covered |= above[index]
    return direct & ~covered
