"""Parameters of a module that a graph reaches.

Rule of this file: read-only looks at autograd's graph and at modules. rounds.py acts on the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from prophet_scheduler.frontends.torch.arena import Slot


def not_reached(outputs: Sequence[torch.Tensor], slots: Iterable[Slot]) -> list[Slot]:
    """Return the slots whose parameters have no part in these outputs."""
    seen: set[Any] = set()
    reached: set[int] = set()
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while nodes:
        node = nodes.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            reached.add(id(variable))
        nodes += [after for after, _ in node.next_functions if after is not None]
    # An output may be a parameter itself.
    reached |= {id(output) for output in outputs}
    return [slot for slot in slots if id(slot.param) not in reached]


def is_cut_off(slot: Slot, module: nn.Module | None) -> bool:
    """Return True if gradients of `module` no longer reach this slot. Its parameter was replaced there, or torch has
    made another node that accumulates into `.grad`, as after a move to another type or device.
    """
    if slot.param.requires_grad and get_gradient_edge(slot.param).node is not slot.accumulation:
        return True
    holder, _, name = slot.name.rpartition(".")
    try:
        return module is not None and module.get_submodule(holder)._parameters.get(name) is not slot.param
    except AttributeError:  # The module that held it is gone.
        return True
    except RuntimeError:  # A scripted module does not tell, but keeps its parameters.
        return False
