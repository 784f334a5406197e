"""A graph from an iteration of a job: the operations that autograd has seen in its forward pass.

Rule of this file: from what a forward pass returned to steps, and from steps with measured times to a graph. Nothing of
the program runs for it, as it would for torch.fx (graph_torch.py); only what needs a gradient is in it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from prophet.core.graph import Graph
from prophet.models.graph_patterns import ForwardStep, Pattern, worker_graph


def steps_of_outputs(outputs: Iterable[Any], name_of: Mapping[int, str]) -> list[ForwardStep]:
    """The steps that `outputs` (tensors of torch) come from, inputs first.

    `name_of` has the name of each parameter that travels, by its id; others are left out.
    """
    steps: list[ForwardStep] = []
    called: dict[Hashable, str | None] = {}
    """By node of autograd: its step's name, None where it is no step but a parameter."""
    roots = [output.grad_fn for output in outputs if getattr(output, "grad_fn", None) is not None]
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        node, inputs_first = stack.pop()
        if node in called:
            continue
        sources = [source for source, _ in node.next_functions if source is not None]
        if hasattr(node, "variable"):
            called[node] = None
        elif not inputs_first:
            stack.append((node, True))
            stack += [(source, False) for source in reversed(sources) if source not in called]
        else:
            called[node] = name = f"{len(steps)}.{node.name()}"
            inputs = (called[source] for source in sources)
            read = (name_of.get(id(source.variable)) for source in sources if hasattr(source, "variable"))
            steps.append(ForwardStep(name, _once(inputs), _once(read)))
    return steps


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
