"""A computation graph with transfers in it: what TicTac, PACE and Caramel schedule.

Rule of this file: the value and its checks. Making one from a model of a framework, and its JSON form, is
models; scheduling one is a policy's. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from prophet_scheduler.core.enums import StrEnum
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import Profile


class OperationKind(StrEnum):
    """Computing occupies the processor for `time_s`; a transfer puts `size_bytes` on the wire."""

    COMPUTE = "compute"
    TRANSFER = "transfer"


@dataclass(frozen=True)
class Operation:
    """One node. It may start when all of its `inputs` (names of other operations) have ended."""

    name: str
    kind: OperationKind
    inputs: tuple[str, ...] = ()
    time_s: float = 0.0
    size_bytes: int = 0


@dataclass(frozen=True)
class Graph:
    """Operations and what each waits for; kept in an order in which inputs come first.

    Raises UserError for a name that is there twice or nowhere, an impossible time or size, and a cycle.
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
                raise UserError(f"{at} is there twice")
            seen.add(operation.name)
            if not math.isfinite(operation.time_s) or operation.time_s < 0:
                raise UserError(f"{at}: 'time_s' is {operation.time_s}; it must be 0 or more seconds")
            is_transfer = operation.kind is OperationKind.TRANSFER
            if operation.size_bytes < 0 or (is_transfer and operation.size_bytes == 0):
                raise UserError(f"{at}: 'size_bytes' is {operation.size_bytes}; a transfer has more than 0 bytes")
        for operation in self.operations:
            for name in operation.inputs:
                if name not in seen:
                    raise UserError(f"{where}: operation {operation.name!r}: its input {name!r} is no operation")
        ordered = _inputs_first(self.operations)
        if len(ordered) < len(self.operations):
            raise UserError(f"{where}: has a cycle: {' -> '.join(_cycle(self.operations, ordered))}")
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
        """Return the operations that wait for each, by its name."""
        waiting: dict[str, list[str]] = {operation.name: [] for operation in self.operations}
        for operation in self.operations:
            for name in operation.inputs:
                waiting[name].append(operation.name)
        return waiting


def _inputs_first(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return Kahn's order, first come first; shorter than `operations` if there is a cycle."""
    operations = tuple(operations)
    waiting = {operation.name: len(set(operation.inputs)) for operation in operations}
    users: dict[str, list[Operation]] = {operation.name: [] for operation in operations}
    for operation in operations:
        for name in dict.fromkeys(operation.inputs):
            users[name].append(operation)
    ready = [operation for operation in operations if not operation.inputs]
    for operation in ready:  # grows while it is walked
        for user in users[operation.name]:
            waiting[user.name] -= 1
            if waiting[user.name] == 0:
                ready.append(user)
    return tuple(ready)


def _cycle(operations: Iterable[Operation], ordered: Iterable[Operation]) -> list[str]:
    """Return the names on one cycle among the operations that are not in `ordered`."""
    done = {operation.name for operation in ordered}
    left = {operation.name: operation for operation in operations if operation.name not in done}
    walked: list[str] = []
    name = next(iter(left))
    while name not in walked:
        walked.append(name)
        name = next(source for source in left[name].inputs if source in left)
    return [*walked[walked.index(name) :], name][::-1]


def training_graph(profile: Profile) -> Graph:
    """Return one iteration of a profile as a chain: backward from the last layer, a transfer a gradient, then forward.

    `backward.i` ends when gradient i is generated, `transfer.i` waits for it, and `forward.i` for the transfer
    and for the layer before.
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
