"""The best order of computing: that which lets transfers begin as early as possible (Caramel, section 4.1, stage 1).

Rule of this file: from a graph to the order in which its transfers become ready; making the computing keep to it is
enforcement.py's. Times are kept in whole picoseconds inside: sums are exact then, so what is equal ties.

Where the paper leaves something open:

- Of parameters that cost the same, that which needs the fewest operations goes first, and of these the first of
  the graph. So a parameter that is ready on the way to another one always goes before it.
- Its graphs end in transfers. Here the next forward pass may follow them; it is no part of the order. A transfer that
  waits for another one costs what both need, so it goes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet.core.errors import UserError
from prophet.core.graph import Graph, OperationKind

PICOSECONDS = 1e12


@dataclass(frozen=True)
class Activation:
    """A transfer becomes ready `time_s` after computing began, by `computed` since the one before it.

    `computed` are names of operations, inputs first; none where the transfer is ready together with the one before.
    """

    transfer: str
    computed: tuple[str, ...]
    time_s: float


def best_order(graph: Graph) -> tuple[str, ...]:
    """The graph's transfers, in the order in which computing should make them ready.

    Iterative and greedy: the parameter that takes the least computing, not counting what was done for those before
    it, is the next. For parameters that share no computing that is shortest first, which has the least mean time; in
    general it is a heuristic.
    """
    transfers = graph.transfers
    needed = _needed(graph)
    times = np.array([_picoseconds(operation.time_s) for operation in graph.operations], np.int64)
    costs, counts = needed @ times, needed.sum(axis=1)
    outside = np.iinfo(np.int64).max
    order: list[str] = []
    for _ in transfers:
        # lexsort has its first key last: by cost, then by operations, then the first.
        cheapest = np.flatnonzero(costs == costs.min())
        chosen = int(cheapest[np.argmin(counts[cheapest])])
        order.append(transfers[chosen].name)
        done = np.flatnonzero(needed[chosen])
        waiting = costs < outside
        costs[waiting] -= needed[np.ix_(waiting, done)] @ times[done]
        counts[waiting] -= needed[np.ix_(waiting, done)].sum(axis=1)
        needed[:, done] = False
        costs[chosen] = outside
    return tuple(order)


def activations(graph: Graph, order: Sequence[str] | None = None) -> tuple[Activation, ...]:
    """When each transfer becomes ready if computing works for one after another, in `order`, on one processor.

    `order` is `best_order(graph)` where it is not given. Transfers in between take no time: what waits for
    one is the next iteration's. Raises UserError where `order` is not all of the graph's transfers, each after those
    that it waits for.
    """
    order = check_order(graph, best_order(graph) if order is None else order)
    above = ancestors(graph)
    place = {operation.name: index for index, operation in enumerate(graph.operations)}
    computing = computing_bits(graph)
    done, now = 0, 0
    result = []
    for name in order:
        new = above[place[name]] & computing & ~done
        done |= new
        operations = [graph.operations[index] for index in places(new)]
        now += sum(_picoseconds(operation.time_s) for operation in operations)
        result.append(Activation(name, tuple(operation.name for operation in operations), now / PICOSECONDS))
    return tuple(result)


def check_order(graph: Graph, order: Sequence[str]) -> tuple[str, ...]:
    """`order`; raises UserError where it cannot be an order of the graph's transfers."""
    where = f"graph {graph.name!r}: order"
    known = {operation.name for operation in graph.transfers}
    if len(set(order)) != len(order) or set(order) != known:
        wrong = sorted(set(order) ^ known) or sorted({name for name in order if list(order).count(name) > 1})
        raise UserError(f"{where}: must have each of the {len(known)} transfers once; look at {wrong[0]!r}")
    above = ancestors(graph)
    place = {operation.name: index for index, operation in enumerate(graph.operations)}
    before = 0
    transfers = ~computing_bits(graph)
    for name in order:
        missing = above[place[name]] & transfers & ~before
        if missing:
            first = graph.operations[next(iter(places(missing)))].name
            raise UserError(f"{where}: {name!r} waits for {first!r}; put it after that")
        before |= 1 << place[name]
    return tuple(order)


def ancestors(graph: Graph) -> list[int]:
    """By place in `graph.operations`: all that it waits for, directly or not: an integer with a bit for each place."""
    place = {operation.name: index for index, operation in enumerate(graph.operations)}
    above: list[int] = []
    for operation in graph.operations:  # inputs come first
        bits = 0
        for name in operation.inputs:
            bits |= above[place[name]] | 1 << place[name]
        above.append(bits)
    return above


def computing_bits(graph: Graph) -> int:
    """A bit for every place in `graph.operations` that computes."""
    bits = 0
    for index, operation in enumerate(graph.operations):
        if operation.kind is OperationKind.COMPUTE:
            bits |= 1 << index
    return bits


def places(bits: int) -> list[int]:
    """The places of the bits that are set, in order."""
    indices = []
    while bits:
        least = bits & -bits
        indices.append(least.bit_length() - 1)
        bits ^= least
    return indices


def _needed(graph: Graph) -> NDArray[np.bool_]:
    """(transfers, operations): which computing a transfer waits for, directly or not."""
    above, computing = ancestors(graph), computing_bits(graph)
    width = len(graph.operations)
    rows = [
        above[index] & computing
        for index, operation in enumerate(graph.operations)
        if operation.kind is OperationKind.TRANSFER
    ]
    packed = b"".join(row.to_bytes((width + 7) // 8, "little") for row in rows)
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), bitorder="little")
    return bits.reshape(len(rows), -1)[:, :width].astype(np.bool_)


def _picoseconds(time_s: float) -> int:
    return round(time_s * PICOSECONDS)
