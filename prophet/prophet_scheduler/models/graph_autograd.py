"""A graph from an iteration of a job: the operations that autograd has seen in its forward pass.

Rule of this file: from what a forward pass returned to steps, and from steps with measured times to a graph. Nothing of
the program runs for it, so any model that trains has one; only what needs a gradient is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_patterns import ForwardStep, Pattern, worker_graph

VIEWS = frozenset({"Alias", "Expand", "Permute", "Reshape", "Slice", "Squeeze", "T", "ToCopy", "Transpose", "View"})
"""As autograd calls them."""


def steps_of_outputs(outputs: Iterable[Any], name_of: Mapping[int, str]) -> list[ForwardStep]:
    """The steps that `outputs` (tensors of torch) come from, inputs first.

    `name_of` has the name of each parameter that travels, by its id; others are left out. What only looks at a
    parameter in another way (VIEWS) is no step: those that use it read the parameter.
    """
    steps: list[ForwardStep] = []
    step_of: dict[Hashable, str | None] = {}
    """By node of autograd: its step, None where it is none."""
    parameters_of: dict[Hashable, tuple[str, ...]] = {}
    """Of a node that is no step: what its users read."""
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
    """Of `TBackward0`: `T`."""
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
    """The forward pass of `steps` with its transfers in front (Pattern.RECEIVE), in the order of `transfer_bytes`.

    A transfer is a parameter; or, where `travels` is given, a block, and `travels` has the blocks by parameter in which
    it is. `layer_s` is by parameter how long the layer takes that reads it, in seconds; of what reads none it is not
    known, and counts as nothing. A layer with several parameters has its time with one of them.
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
