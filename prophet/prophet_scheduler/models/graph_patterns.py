"""Graphs of a worker's iteration, from the forward pass of a model.

Rule of this file: no framework. graph_autograd.py and prophet_mxnet/graph.py make the `ForwardStep`s of a model. Sizes
are bytes, times seconds, work is floating-point operations (a multiplication and an addition count as two).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prophet_scheduler.core.enums import StrEnum
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind


class Pattern(StrEnum):
    """Parts of a worker's iteration in a graph. Computing operations are named `forward.STEP` and `backward.STEP`.

    RECEIVE: receive each parameter, then forward, as in inference and in the forward part of TicTac.
    WORKER: the same, then backward, and send `gradient.PARAMETER`: a worker with TicTac's parameter server.
    """

    RECEIVE = "receive"
    WORKER = "worker"


@dataclass(frozen=True)
class ForwardStep:
    """One operation of the forward pass, which reads the steps `inputs` and the parameters `parameters`.

    `product_flops` is the work of matrix products and convolutions. Their backward pass is one such product for each
    operand that needs a gradient. `other_flops` is all other work; its backward pass is assumed to be as much again.
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
    """Return the graph of `pattern` for a forward pass with `steps` in topological order.

    A parameter that several steps read is one transfer, and its gradient waits for all of them. Transfers are in the
    order of `parameter_bytes`, without empty and unread ones. Backward mirrors forward from the first step with a
    parameter on, because values that depend only on the model's input need no gradient. The loss follows all steps that
    no other step reads.

    An operation takes the measured `times_s[its name]`, or else its work at `flops_per_s`. Raises UserError for an
    operation with neither, a time of an unknown operation, and an invalid rate.
    """
    if flops_per_s is not None and not (math.isfinite(flops_per_s) and flops_per_s > 0):
        raise UserError(f"graph {name!r}: 'flops_per_s' is {flops_per_s}; it must be above 0")
    readers = {
        parameter: [step.name for step in steps if parameter in step.parameters]
        for parameter, size in parameter_bytes.items()
        if size > 0
    }
    read = [parameter for parameter, several in readers.items() if several]
    measured_s = dict(times_s or {})

    def computing(operation: str, inputs: Sequence[str], flops: float) -> Operation:
        if operation not in measured_s and flops_per_s is None:
            raise UserError(
                f"graph {name!r}: no time for operation {operation!r}; give it in 'times_s', or give 'flops_per_s'"
            )
        time_s = measured_s[operation] if operation in measured_s else flops / (flops_per_s or 1.0)
        return Operation(operation, OperationKind.COMPUTE, tuple(dict.fromkeys(inputs)), time_s)

    operations = [Operation(each, OperationKind.TRANSFER, size_bytes=parameter_bytes[each]) for each in read]
    for step in steps:
        inputs = [*(f"forward.{source}" for source in step.inputs), *(p for p in step.parameters if p in read)]
        operations.append(computing(f"forward.{step.name}", inputs, step.product_flops + step.other_flops))
    if pattern is Pattern.WORKER:
        operations += (computing(*backward) for backward in _backward(steps, set(read)))
        for parameter in read:
            after = tuple(f"backward.{reader}" for reader in readers[parameter])
            size = parameter_bytes[parameter]
            operations.append(Operation(f"gradient.{parameter}", OperationKind.TRANSFER, after, size_bytes=size))
    graph = Graph(name, tuple(operations))
    known = {operation.name for operation in graph.computing}
    for timed in measured_s:
        if timed not in known:
            raise UserError(f"graph {name!r}: 'times_s' names {timed!r}, which is no computing operation; remove it")
    return graph


def _backward(steps: Sequence[ForwardStep], read: set[str]) -> Iterator[tuple[str, list[str], float]]:
    """Yield (name, inputs, work) of the backward pass, from the last step to the first."""
    users: dict[str, list[str]] = {step.name: [] for step in steps}
    trained: set[str] = set()  # steps whose output needs a gradient
    for step in steps:
        for source in dict.fromkeys(step.inputs):
            users[source].append(step.name)
        if read.intersection(step.parameters) or trained.intersection(step.inputs):
            trained.add(step.name)
    loss = [f"forward.{step.name}" for step in steps if not users[step.name]]
    for step in reversed(steps):
        if step.name in trained:
            after = [f"backward.{user}" for user in users[step.name]] or loss
            operands = len(trained.intersection(step.inputs)) + bool(read.intersection(step.parameters))
            flops = step.product_flops * min(operands, 2) + step.other_flops
            yield f"backward.{step.name}", [*after, f"forward.{step.name}"], flops
