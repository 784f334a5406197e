"""From the forward pass of a model to the graph of one worker's iteration.

Rule of this file: no framework; graph_autograd.py and prophet_mxnet/graph.py make `ForwardStep`s of a model, and this
is the rest.
Sizes are bytes, times seconds, work is in floating-point operations (a multiplication and an addition are two).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind


class Pattern(enum.StrEnum):
    """What one iteration of a worker consists of. Computing is called `forward.STEP` and `backward.STEP`.

    RECEIVE: each parameter is received, then forward: inference, and the forward part of TicTac.
    WORKER: the same, then backward, and `gradient.PARAMETER` is sent: a worker of TicTac's parameter server.
    EXCHANGE: backward, then a transfer for each parameter (a push and pull, or an all-reduce), then the forward pass of
    the next iteration: what Prophet, PACE and Caramel schedule.
    """

    RECEIVE = "receive"
    WORKER = "worker"
    EXCHANGE = "exchange"


@dataclass(frozen=True)
class ForwardStep:
    """One operation of the forward pass: `inputs` are the steps and `parameters` the parameters that it reads.

    `product_flops` is the work of matrix products and convolutions, whose backward pass is one such product for each
    operand that needs a gradient; `other_flops` all other work, whose backward pass is taken to be as much again.
    """

    name: str
    inputs: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    product_flops: float = 0.0
    other_flops: float = 0.0


def worker_graph(
    name: str,
    steps: Sequence[ForwardStep],
    parameter_bytes: Mapping[str, int],
    *,
    pattern: Pattern = Pattern.RECEIVE,
    flops_per_s: float | None = None,
    times_s: Mapping[str, float] | None = None,
) -> Graph:
    """The graph of `pattern` for a forward pass whose `steps` come with inputs first.

    A parameter that several steps read is one transfer, and its gradient waits for all of them; transfers come in the
    order of `parameter_bytes`, and one that no step reads, or that is empty, is left out. Backward mirrors forward
    from the first step with a parameter on: what only depends on the input of the model needs no gradient. The loss
    follows all steps that no other step reads.

    An operation takes `times_s[its name]`, as measured, or else its work at `flops_per_s`. Raises UserError for an
    operation with neither, a time for no operation, and an impossible rate.
    """
    if flops_per_s is not None and not (math.isfinite(flops_per_s) and flops_per_s > 0):
        raise UserError(f"graph {name!r}: 'flops_per_s' is {flops_per_s}; it must be above 0")
    build = _Build(name, steps, parameter_bytes, flops_per_s, dict(times_s or {}))
    operations = {Pattern.RECEIVE: build.receive, Pattern.WORKER: build.worker, Pattern.EXCHANGE: build.exchange}
    graph = Graph(name, tuple(operations[pattern]()))
    computing = {operation.name for operation in graph.computing}
    for timed in times_s or {}:
        if timed not in computing:
            raise UserError(f"graph {name!r}: 'times_s' names {timed!r}, which computes nothing in it; take it out")
    return graph


class _Build:
    """The operations of each pattern, from one reading of the steps."""

    def __init__(
        self,
        name: str,
        steps: Sequence[ForwardStep],
        parameter_bytes: Mapping[str, int],
        flops_per_s: float | None,
        times_s: Mapping[str, float],
    ) -> None:
        self._name, self._steps, self._flops_per_s, self._times_s = name, steps, flops_per_s, times_s
        self._readers: dict[str, list[str]] = {parameter: [] for parameter, size in parameter_bytes.items() if size > 0}
        self._bytes = parameter_bytes
        self._users: dict[str, list[str]] = {step.name: [] for step in steps}
        self._trained: set[str] = set()  # steps whose output needs a gradient
        for step in steps:
            for parameter in step.parameters:
                if parameter in self._readers:
                    self._readers[parameter].append(step.name)
            for source in dict.fromkeys(step.inputs):
                self._users[source].append(step.name)
            if self._parameters(step) or self._trained.intersection(step.inputs):
                self._trained.add(step.name)

    def receive(self) -> Iterable[Operation]:
        for parameter in self._read():
            yield Operation(parameter, OperationKind.TRANSFER, size_bytes=self._bytes[parameter])
        for step in self._steps:
            yield self._forward(step)

    def worker(self) -> Iterable[Operation]:
        yield from self.receive()
        loss = tuple(f"forward.{step.name}" for step in self._steps if not self._users[step.name])
        yield from self._backward(after=loss, also=lambda step: (f"forward.{step.name}",))
        for parameter in self._read():
            yield Operation(
                f"gradient.{parameter}",
                OperationKind.TRANSFER,
                tuple(f"backward.{reader}" for reader in self._readers[parameter]),
                size_bytes=self._bytes[parameter],
            )

    def exchange(self) -> Iterable[Operation]:
        backward = list(self._backward())
        yield from backward
        for parameter in self._read():
            inputs = tuple(f"backward.{reader}" for reader in self._readers[parameter])
            yield Operation(parameter, OperationKind.TRANSFER, inputs, size_bytes=self._bytes[parameter])
        followed = {source for operation in backward for source in operation.inputs}
        last = tuple(operation.name for operation in backward if operation.name not in followed)
        for step in self._steps:
            yield self._forward(step, after=() if step.inputs else last)

    def _read(self) -> list[str]:
        return [parameter for parameter, readers in self._readers.items() if readers]

    def _parameters(self, step: ForwardStep) -> tuple[str, ...]:
        return tuple(parameter for parameter in step.parameters if parameter in self._readers)

    def _forward(self, step: ForwardStep, after: tuple[str, ...] = ()) -> Operation:
        inputs = (*after, *(f"forward.{source}" for source in step.inputs), *self._parameters(step))
        return self._compute(f"forward.{step.name}", inputs, step.product_flops + step.other_flops)

    def _backward(
        self, after: tuple[str, ...] = (), also: Callable[[ForwardStep], tuple[str, ...]] = lambda step: ()
    ) -> Iterable[Operation]:
        """From the last step to the first; a step that no other reads waits for `after`, each for `also` its own."""
        for step in reversed(self._steps):
            if step.name not in self._trained:
                continue
            users = self._users[step.name]
            inputs = (*(f"backward.{user}" for user in users), *(() if users else after), *also(step))
            operands = len(self._trained.intersection(step.inputs)) + bool(self._parameters(step))
            flops = step.product_flops * min(operands, 2) + step.other_flops
            yield self._compute(f"backward.{step.name}", tuple(dict.fromkeys(inputs)), flops)

    def _compute(self, name: str, inputs: tuple[str, ...], flops: float) -> Operation:
        time_s = self._times_s.get(name)
        if time_s is None:
            if self._flops_per_s is None:
                raise UserError(
                    f"graph {self._name!r}: no time for operation {name!r}; give it in 'times_s', or give 'flops_per_s'"
                )
            time_s = flops / self._flops_per_s
        return Operation(name, OperationKind.COMPUTE, inputs, time_s)
