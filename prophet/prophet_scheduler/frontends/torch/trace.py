"""Forward pass of a job: the time of each layer, and the graph, from a few iterations early in a job.

Rule of this file: when the parts of a model are called, and what follows for its gradients, on any engine. Times are in
seconds. Transfer events only show the duration of the whole forward pass. Policies that overlap transfers with it
(PACE, Caramel) need the time of each layer; their systems use the framework's trace of operations. A policy that orders
by the model's graph (TicTac) gets the autograd graph of a traced forward pass.

A module with its own parameters is assumed to use them when called. Nothing may wait for the network in a traced
forward pass, so the engine's front end lets no update outlast step() meanwhile. On an asynchronous device, a call shows
when work is submitted and not how long it takes, so models there must not be traced.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from prophet_scheduler.frontends.torch.awaited import before_backward

if TYPE_CHECKING:
    from prophet_scheduler.core.cut import Block
    from prophet_scheduler.core.graph import Graph
    from prophet_scheduler.models.graph_patterns import ForwardStep

PASSED_OVER = 3
"""Number of first iterations left out: they allocate memory, and some have waited."""
TRACED = 8


class ForwardTrace:
    """Trace of a model's forward passes; `params` are its gradients' parameters in forward order.

    Only the training thread may call `begins`, `ends` and `remove`; other methods are for any thread. `with_graph`:
    trace the graph, too.
    """

    def __init__(self, params: Sequence[torch.Tensor], with_graph: bool = False) -> None:
        self.done = False
        self.why_not = ""
        """Reason why there is no trace, in a few words; empty if there is no such reason so far."""
        self._with_graph = with_graph
        self._steps: list[ForwardStep] = []
        self._count = len(params)
        self._place_of = {id(param): place for place, param in enumerate(params)}
        self._travel = frozenset(_parameter(place) for place, param in enumerate(params) if param.numel())
        self._unseen = self._travel
        self._rows: list[dict[int, float]] = []
        self._open: dict[int, float] | None = None
        self._hook = register_module_forward_pre_hook(self._called)
        self._leave_backward = before_backward(self._backward_begins)

    def begins(self) -> None:
        """Begin the forward pass of an iteration."""
        if len(self._rows) == PASSED_OVER + TRACED:
            self._remove()
        if not self.done:
            self._open = {}

    def ends(self) -> None:
        """End the forward pass, if the caller sees its end before the backward pass begins."""
        if self._open is not None:
            self._open[self._count] = time.monotonic()
            self._rows.append(self._open)
            self._open = None

    def remove(self, why: str) -> None:
        """Stop tracing, for this reason."""
        if not self.done:
            self.why_not = why
            self._remove()

    def abandon(self) -> None:
        """Stop because the model is gone. The hooks remain and do nothing: this runs in a finalizer, and torch may be
        iterating over them.
        """
        self._open = None
        self.done = True

    def _remove(self) -> None:
        self._open = None
        self._hook.remove()
        self._leave_backward()
        self.done = True

    def forward_s(self) -> list[float] | None:
        """Return the seconds by gradient, from the first use of its parameter to the first use of the next parameter;
        None before the trace is done.

        A parameter first used after the next one in forward order counts as used together with it.
        """
        if not self._complete:
            return None
        layers = (
            [after - before for before, after in itertools.pairwise(row)] for row in map(self._used_at, self._kept)
        )
        return [statistics.median(times) for times in zip(*layers, strict=True)]

    def forward_of(self, blocks: Sequence[Block]) -> dict[int, float] | None:
        """Return the seconds of forward by id of these blocks, which are in the order of their places; None before the
        trace is done. A block is used when the first gradient with a part in it is used.
        """
        forward_s = self.forward_s()
        if forward_s is None:
            return None
        used_s = [0.0, *itertools.accumulate(forward_s)]
        at = [*(used_s[block.pieces[0].gradient] for block in blocks), used_s[-1]]
        return {block.id: after - before for block, (before, after) in zip(blocks, itertools.pairwise(at), strict=True)}

    def graph(self, blocks: Sequence[Block]) -> Graph | None:
        """Return the graph of the forward pass after transfers of these blocks, in their order, with measured times.

        None before the trace is done, or if it lacks a parameter; `why_not` has the reason then.
        """
        if not self._complete:
            return None
        if self._unseen:
            said = f"{len(self._unseen)} of its {self._count} parameters have no part in the graph of its loss"
            self.why_not = self.why_not or said
            return None
        travels: dict[str, list[str]] = {}
        for block in blocks:
            for piece in block.pieces:
                travels.setdefault(_parameter(piece.gradient), []).append(_transfer(block))
        sizes = {_transfer(block): block.size_bytes for block in blocks}
        from prophet_scheduler.models.graph_autograd import graph_of_steps  # Few policies need it.

        return graph_of_steps("traced", self._steps, sizes, self._layer_s(), travels)

    @property
    def _complete(self) -> bool:
        return self.done and len(self._rows) == PASSED_OVER + TRACED

    @property
    def _kept(self) -> list[dict[int, float]]:
        return self._rows[PASSED_OVER:]

    def _used_at(self, row: dict[int, float]) -> list[float]:
        """Return the times of use by gradient, then the end of forward. A parameter without one gets the next one's."""
        times = [row[self._count]]
        for place in reversed(range(self._count)):
            times.append(min(times[-1], row.get(place, times[-1])))
        return times[::-1]

    def _layer_s(self) -> dict[str, float]:
        """Return the seconds by parameter, from its first use to the next use of any other, in actual order. Of
        parameters used at once, the last gets all of the time.
        """
        seconds: dict[int, list[float]] = {}
        for row in self._kept:
            in_turn = sorted(row.items(), key=lambda use: (use[1], use[0]))
            for (place, used_s), (_, next_s) in itertools.pairwise(in_turn):
                seconds.setdefault(place, []).append(next_s - used_s)
        return {_parameter(place): statistics.median(values) for place, values in seconds.items()}

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        # A pass without gradients is an evaluation.
        if self._open is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        now = time.monotonic()
        for param in module._parameters.values():
            place = self._place_of.get(id(param))
            if place is not None:
                self._open.setdefault(place, now)

    def _backward_begins(self, roots: Sequence[Any]) -> None:
        self.ends()
        wanted = self._with_graph and self._unseen and len(self._rows) == PASSED_OVER + TRACED
        if not wanted or torch.compiler.is_compiling():
            return
        try:
            from prophet_scheduler.models.graph_autograd import steps_of_outputs  # Few policies need it.

            steps = steps_of_outputs(roots, {id_: _parameter(place) for id_, place in self._place_of.items()})
        except Exception as error:
            self.remove(f"reading its graph failed ({type(error).__name__}: {error})")
            return
        unseen = self._travel.difference(*(step.parameters for step in steps))
        if len(unseen) < len(self._unseen):  # Another loss may cover fewer parameters.
            self._steps, self._unseen = steps, unseen


def _parameter(place: int) -> str:
    return f"parameter{place}"


def _transfer(block: Block) -> str:
    """Return the block's name in a learned profile (learn/profiler.py)."""
    return f"gradient{block.id}"
