"""How long each layer computes forward, from a few iterations in which nothing waits for the network.

Rule of this file: when the modules of one DistributedDataParallel are called, and what follows for its gradients. Times
are seconds. What events of transfers tell of the forward pass is its length alone; policies that pack transfers beside
it (PACE, Caramel) need the time of each layer, for which their systems have the framework's trace of operations.

A module with parameters of its own is taken to use them when it is called. While the trace lasts step() waits for all
averages, so that no layer does. A policy that orders by the model's graph (TicTac) gets what autograd saw of the last
forward pass that was traced.
"""

from __future__ import annotations

import itertools
import statistics
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from prophet.core.graph import Graph
    from prophet.models.graph_patterns import ForwardStep

PASSED_OVER = 3
"""First iterations, in which memory is allocated, and of which some waited."""
TRACED = 8


class ForwardTrace:
    """Of the calls of a module's parts; `params` are its gradients' parameters in forward order.

    `begins`, `ends` and `remove` are for the thread that trains; any thread may ask for the rest.
    """

    def __init__(self, module: nn.Module, params: Sequence[torch.Tensor], with_graph: bool = False) -> None:
        self.done = False
        self._sizes = {_name(place): param.nbytes for place, param in enumerate(params)}
        self._name_of = {id(param): _name(place) for place, param in enumerate(params)}
        self._steps: list[ForwardStep] = []
        self._whole = weakref.ref(module)
        self._count = len(params)
        place_of = {id(param): place for place, param in enumerate(params)}
        self._places: weakref.WeakKeyDictionary[nn.Module, list[int]] = weakref.WeakKeyDictionary()
        for part in module.modules():
            places = [place_of[id(param)] for param in part.parameters(recurse=False) if id(param) in place_of]
            if places:
                self._places[part] = places
        self._rows: list[dict[int, float]] = []
        self._open: dict[int, float] | None = None
        self._hooks = [register_module_forward_pre_hook(self._called)]
        if with_graph:
            self._hooks.append(register_module_forward_hook(self._returned))

    def begins(self) -> None:
        """A forward pass begins that is followed by a synchronised backward pass."""
        if len(self._rows) == PASSED_OVER + TRACED:
            self.remove()
        if not self.done:
            self._open = {}

    def ends(self) -> None:
        """It has ended."""
        if self._open is not None:
            self._open[self._count] = time.monotonic()
            self._rows.append(self._open)
            self._open = None

    def remove(self) -> None:
        """No more is traced."""
        self._open = None
        for hook in self._hooks:
            hook.remove()
        self.done = True

    @property
    def alive(self) -> bool:
        """Whether the module is still there."""
        return self._whole() is not None

    def forward_s(self) -> list[float] | None:
        """By gradient: from the first use of its parameter to that of the next one. None before the trace is done.

        A parameter that is first used after that of the gradient behind it counts as used with that one.
        """
        rows = [self._used_at(row) for row in self._rows[PASSED_OVER:]]
        if not self.done or len(rows) < TRACED:
            return None
        layers = ([after - before for before, after in itertools.pairwise(row)] for row in rows)
        return [statistics.median(times) for times in zip(*layers, strict=True)]

    def graph(self) -> Graph | None:
        """The forward pass behind the transfers of its parameters, with measured times. None before the trace is done,
        and where a parameter was not seen in it.
        """
        forward_s = self.forward_s()
        seen = {parameter for step in self._steps for parameter in step.parameters}
        if forward_s is None or any(size and name not in seen for name, size in self._sizes.items()):
            return None
        layer_s = {_name(place): seconds for place, seconds in enumerate(forward_s)}
        from prophet.models.graph_autograd import graph_of_steps  # Few policies need it.

        return graph_of_steps("traced", self._steps, self._sizes, layer_s)

    def _used_at(self, row: dict[int, float]) -> list[float]:
        """By gradient, and at last the end of forward. What no call had counts as used with the next one."""
        times = [row[self._count]]
        for place in reversed(range(self._count)):
            times.append(min(times[-1], row.get(place, times[-1])))
        return times[::-1]

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        if self._open is None or torch.compiler.is_compiling():
            return
        now = time.monotonic()
        for place in self._places.get(module, ()):
            self._open.setdefault(place, now)

    def _returned(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        last = len(self._rows) == PASSED_OVER + TRACED - 1
        if last and self._open is not None and not torch.compiler.is_compiling() and module is self._whole():
            from prophet.models.graph_autograd import steps_of_outputs

            tensors = [output for output in tree_leaves(outputs) if isinstance(output, torch.Tensor)]
            self._steps = steps_of_outputs(tensors, self._name_of)


def _name(place: int) -> str:
    return f"gradient{place}"
