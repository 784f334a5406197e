"""A graph from an iteration of a job: the operations that autograd has seen in its forward pass.

Rule of this file: from what a forward pass returned to steps, and from steps with measured times to a graph. Nothing of
the program runs for it, as it would for torch.fx (graph_torch.py); only what needs a gradient is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from prophet.core.graph import Graph
from prophet.models.graph_patterns import ForwardStep, Pattern, worker_graph

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
    name: str, steps: Sequence[ForwardStep], parameter_bytes: Mapping[str, int], layer_s: Mapping[str, float]
) -> Graph:
    """The forward pass of `steps` with a transfer in front of it for each parameter (Pattern.RECEIVE).

    `layer_s` is by parameter how long the layer takes that reads it, in seconds; of what reads none it is not known,
    and counts as nothing. A layer with several parameters has its time with one of them.
    """
    counted: set[str] = set()
    times_s = {}
    for step in steps:
        new = [parameter for parameter in step.parameters if parameter not in counted]
        counted.update(new)
        times_s[f"forward.{step.name}"] = sum(layer_s.get(parameter, 0.0) for parameter in new)
    return worker_graph(name, steps, parameter_bytes, pattern=Pattern.RECEIVE, times_s=times_s)
