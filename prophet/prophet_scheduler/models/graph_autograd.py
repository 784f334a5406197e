"""Graphs of a job's forward pass, from the operations that autograd recorded.

Rule of this file: conversion of the outputs of a forward pass to steps, and of steps with measured times to a graph. It
runs no code of the program, so it works for any model that trains. A graph has only operations that need a gradient.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_patterns import ForwardStep, Pattern, worker_graph

VIEWS = frozenset({"Alias", "Expand", "Permute", "Reshape", "Slice", "Squeeze", "T", "ToCopy", "Transpose", "View"})
"""Operations that only return another view of a tensor, by autograd's names."""


def steps_of_outputs(outputs: Iterable[Any], name_of: Mapping[int, str]) -> list[ForwardStep]:
    """Return the steps that lead to `outputs` (torch tensors), inputs first.

    `name_of` has the name of each parameter that travels, by the parameter's id(); others are left out. A view of a
    parameter (VIEWS) is not a step: the steps that use the view read the parameter.
    """
    steps: list[ForwardStep] = []
    step_of: dict[Hashable, str | None] = {}
    """Step of each autograd node; None if the node is not a step."""
    parameters_of: dict[Hashable, tuple[str, ...]] = {}
    """For nodes that are not steps: the parameters that their users read."""
    roots = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, inputs_first = stack.pop()
        if node in step_of:
            continue
        sources = [source for source, _ in node.next_functions if source is not None]
        if hasattr(node, "variable"):
            name = name_of.get(id(node.variable))
            step_of[node] = None
            parameters_of[node] = () if name is None else (name,)
        elif not inputs_first:
            stack.append((node, True))
            stack += [(source, False) for source in reversed(sources) if source not in step_of]
        else:
            inputs = _once(step_of[source] for source in sources)
            read = _once(itertools.chain(*(parameters_of.get(source, ()) for source in sources)))
            if inputs or node in roots or _operation(node) not in VIEWS:
                step_of[node] = name = f"{len(steps)}.{node.name()}"
                steps.append(ForwardStep(name, inputs, read))
            else:
                step_of[node] = None
                parameters_of[node] = read
    return steps


def _operation(node: Any) -> str:
    """Return the name of a node's operation, such as `T` for `TBackward0`."""
    name: str = node.name()
    return name.partition("Backward")[0]


def _once(names: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name is not None))


def graph_of_steps(
    name: str,
    steps: Sequence[ForwardStep],
    transfer_bytes: Mapping[str, int],
    layer_s: Mapping[str, float],
    travels: Mapping[str, Sequence[str]] | None = None,
) -> Graph:
    """Return the forward pass of `steps`, preceded by its transfers (Pattern.RECEIVE) in the order of `transfer_bytes`.

    A transfer is a parameter or, with `travels`, a block; `travels` has the blocks of each parameter. `layer_s` has the
    seconds of the layer that reads each parameter. A layer with several parameters has its time listed with one of
    them. Steps without parameters take no time.
    """
    counted: set[str] = set()
    times_s = {}
    reading = []
    for step in steps:
        new = [parameter for parameter in step.parameters if parameter not in counted]
        counted.update(new)
        times_s[f"forward.{step.name}"] = sum(layer_s.get(parameter, 0.0) for parameter in new)
        if travels is not None:
            read = _once(block for parameter in step.parameters for block in travels.get(parameter, ()))
            step = replace(step, parameters=read)
        reading.append(step)
    return worker_graph(name, reading, transfer_bytes, pattern=Pattern.RECEIVE, times_s=times_s)
