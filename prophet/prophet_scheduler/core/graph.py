"""A computation graph that includes transfers, as scheduled by TicTac, PACE and Caramel.

Rule of this file: the value and its checks. models/ makes graphs from models of a framework and has their JSON form;
policies schedule graphs. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from prophet_scheduler.core.enums import StrEnum
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile


class OperationKind(StrEnum):
    """Kind of an operation: computing takes the processor for `time_s`, a transfer puts `size_bytes` on the wire."""

    COMPUTE = "compute"
    TRANSFER = "transfer"


@dataclass(frozen=True)
class Operation:
    """Node of a graph. It may start when all its `inputs` (names of other operations) have finished."""

    name: str
    kind: OperationKind
    inputs: tuple[str, ...] = ()
    time_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True)
class Graph:
    """Operations with their inputs, kept in topological order.

    Raises UserError for a duplicate or unknown name, an invalid time or size, and a cycle.
    """

    name: str
    operations: tuple[Operation, ...]
    _places: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        where = f"graph {self.name!r}"
        if not self.operations:
            raise UserError(f"{where}: 'operations' is empty; give at least one")
        seen: set[str] = set()
        for operation in self.operations:
            at = f"{where}: operation {operation.name!r}"
            if operation.name in seen:
                raise UserError(f"{at} is defined twice")
            seen.add(operation.name)
            if not math.isfinite(operation.time_s) or operation.time_s < 0:
                raise UserError(f"{at}: 'time_s' is {operation.time_s}; it must be 0 or more seconds")
            is_transfer = operation.kind is OperationKind.TRANSFER
            if operation.size_bytes < 0 or (is_transfer and operation.size_bytes == 0):
                raise UserError(f"{at}: 'size_bytes' is {operation.size_bytes}; a transfer has more than 0 bytes")
        for operation in self.operations:
            for name in operation.inputs:
                if name not in seen:
                    raise UserError(f"{where}: operation {operation.name!r}: its input {name!r} is not an operation")
        by_name = {operation.name: operation for operation in self.operations}
        try:
            ordered = tuple(by_name[name] for name in _inputs_first(self.operations))
        except CycleError as error:
            raise UserError(f"{where}: has a cycle: {' -> '.join(error.args[1])}") from None
        object.__setattr__(self, "operations", ordered)
        object.__setattr__(self, "_places", {operation.name: place for place, operation in enumerate(ordered)})

    def __getitem__(self, name: str) -> Operation:
        return self.operations[self._places[name]]

    @property
    def transfers(self) -> tuple[Operation, ...]:
        return tuple(operation for operation in self.operations if operation.kind is OperationKind.TRANSFER)

    @property
    def computing(self) -> tuple[Operation, ...]:
        return tuple(operation for operation in self.operations if operation.kind is OperationKind.COMPUTE)

    def successors(self) -> dict[str, list[str]]:
        """Return the names of the operations that wait for each operation, by name."""
        waiting: dict[str, list[str]] = {operation.name: [] for operation in self.operations}
        for operation in self.operations:
            for name in operation.inputs:
                waiting[name].append(operation.name)
        return waiting


def _inputs_first(operations: Sequence[Operation]) -> Iterable[str]:
    """Return the names in topological order, else in the order given. Raises CycleError."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for operation in operations:  # fixes the order of operations that do not depend on each other
        sorter.add(operation.name)
    for operation in operations:
        sorter.add(operation.name, *dict.fromkeys(operation.inputs))
    return sorter.static_order()


def training_graph(profile: Profile) -> Graph:
    """Return one iteration of a profile: backward from the last layer, a transfer per gradient, then forward.

    `backward.i` ends when gradient i is generated, and `transfer.i` waits for it. `forward.i` waits for `transfer.i`
    and the layer before; `forward.0` for the end of backward.
    """
    operations = []
    previous: tuple[str, ...] = ()
    generated = 0.0
    for index in reversed(range(len(profile.gradients))):
        gradient = profile.gradients[index]
        time_s = max(0.0, gradient.generation_s - generated)
        generated = max(generated, gradient.generation_s)
        operations.append(Operation(f"backward.{index}", OperationKind.COMPUTE, previous, time_s))
        operations.append(
            Operation(
                f"transfer.{index}", OperationKind.TRANSFER, (f"backward.{index}",), size_bytes=gradient.size_bytes
            )
        )
        previous = (f"backward.{index}",)
    for index, gradient in enumerate(profile.gradients):
        inputs = (*previous, f"transfer.{index}")
        operations.append(Operation(f"forward.{index}", OperationKind.COMPUTE, inputs, gradient.forward_s))
        previous = (f"forward.{index}",)
    return Graph(profile.name, tuple(operations))
