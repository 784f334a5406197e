"""Evaluation of an order: the makespan of one worker, and the paper's efficiency and speedup (Eqs. 1 to 4).

Rule of this file: the model of TicTac, section 3, only, and the paper's two extreme models (section 6); the simulator
is closer to a real network, and frameworks' models are in prophet_scheduler/models.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from prophet_papers.algorithms.tictac.ordering import PICOSECONDS, TimeOracle, whole
from prophet_scheduler.core.graph import Graph, Operation, OperationKind

PROCESSOR, RECEIVE, SEND = range(3)


@dataclass(frozen=True)
class Bounds:
    """Upper and lower bound of an iteration in seconds, whatever its dependencies.

    `sequential_s` is Eq. 1, one operation at a time; `parallel_s` is Eq. 2, the busiest resource alone.
    """

    sequential_s: float
    parallel_s: float

    @property
    def speedup(self) -> float:
        """Maximum gain of the best order over the worst (Eq. 4, the paper's S); 1 means twice the throughput."""
        return (self.sequential_s - self.parallel_s) / self.parallel_s if self.parallel_s else 0.0

    def efficiency(self, makespan_s: float) -> float:
        """Return Eq. 3, the paper's E: 1 if the busiest resource is never idle, 0 if only one is busy at any time.

        The bounds ignore dependencies, so 1 may be out of reach, and a measured time beyond them gives a result outside
        0 to 1. With a single busy resource every order is perfect, and the result is 1.
        """
        range_s = self.sequential_s - self.parallel_s
        return (self.sequential_s - makespan_s) / range_s if range_s else 1.0


class Worker:
    """One worker that runs `graph`, with times from `oracle`.

    It has a processor, a receive channel and a send channel; each runs one operation at a time, without preemption. A
    transfer that nothing waits for is sent, every other is received: the link is full duplex. Raises UserError if the
    oracle gives an impossible time.
    """

    def __init__(self, graph: Graph, oracle: TimeOracle) -> None:
        operations = graph.operations
        self.graph = graph
        self._times = [whole(graph, oracle, operation) for operation in operations]
        place_of = {operation.name: place for place, operation in enumerate(operations)}
        self._waits_for = [len(operation.inputs) for operation in operations]
        self._users: list[list[int]] = [[] for _ in operations]
        for place, operation in enumerate(operations):
            for name in operation.inputs:
                self._users[place_of[name]].append(place)
        self._resources = [
            PROCESSOR if operation.kind is OperationKind.COMPUTE else RECEIVE if users else SEND
            for operation, users in zip(operations, self._users, strict=True)
        ]

    def bounds(self) -> Bounds:
        busy = [0, 0, 0]
        for time, resource in zip(self._times, self._resources, strict=True):
            busy[resource] += time
        return Bounds(sum(busy) / PICOSECONDS, max(busy) / PICOSECONDS)

    def makespan_s(
        self, priorities: Mapping[str, float] | None = None, random: np.random.Generator | None = None
    ) -> float:
        """Return the seconds from the start to the end of the last operation, by list scheduling.

        A free resource takes the ready operation with the lowest number in `priorities` (by name). Equals go in graph
        order or, with `random`, in random order, which is TensorFlow without TicTac (section 3, "Priority"). An
        operation without a number goes after those with one; the paper lets it go at any time.
        """
        numbers = priorities or {}
        count = len(self._times)
        ties = random.permutation(count).tolist() if random is not None else range(count)
        rank = [(numbers.get(operation.name, math.inf), ties[i]) for i, operation in enumerate(self.graph.operations)]
        waits_for = list(self._waits_for)
        ready: list[list[tuple[tuple[float, int], int]]] = [[], [], []]
        for place in range(count):
            if not waits_for[place]:
                ready[self._resources[place]].append((rank[place], place))
        for queue in ready:
            heapq.heapify(queue)
        busy = [False, False, False]
        running: list[tuple[int, int]] = []
        now = 0
        while True:
            for resource, queue in enumerate(ready):
                if queue and not busy[resource]:
                    _, place = heapq.heappop(queue)
                    busy[resource] = True
                    heapq.heappush(running, (now + self._times[place], place))
            if not running:
                return now / PICOSECONDS
            now = running[0][0]
            while running and running[0][0] == now:
                _, ended = heapq.heappop(running)
                busy[self._resources[ended]] = False
                for user in self._users[ended]:
                    waits_for[user] -= 1
                    if not waits_for[user]:
                        heapq.heappush(ready[self._resources[user]], (rank[user], user))


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
