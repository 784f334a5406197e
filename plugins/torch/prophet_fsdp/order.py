"""The order in which modules need their parameters, and the gatherings begun ahead of it.

Rule of this file: which module comes next. The first iteration shows the order of forward and of backward. From then on
each module lets FSDP2 gather the next ones while it computes, by FSDP2's own lists of modules to prefetch. A program
that sets those itself keeps its own.

A gathering that a forward pass did not use would be old after the next update, so none outlives its pass.
"""

from __future__ import annotations

import weakref
from typing import Any

from prophet_scheduler.frontends.torch.references import in_backward

AHEAD = 2
"""Modules whose parameters are gathered ahead: one that travels, and one that is there or next."""


class ModuleOrder:
    """Order of the sharded modules of a model."""

    def __init__(self) -> None:
        self._forward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._backward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self._settled = False
        self._places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def gathers(self, module: Any) -> None:
        """Note that a module's parameters are on their way."""
        self._under_way.add(module)
        if self._settled:
            return
        if in_backward():
            self._backward[module] = None
        elif _context(module).iter_forward_root is not None:
            self._forward[module] = None

    def place(self, module: Any) -> int:
        """Return the module's place in forward; 0 where that is unknown. The same on all ranks."""
        return self._places.get(module, 0)

    def forward_begins(self, module: Any) -> None:
        """Note a module's turn in forward, where it gathers nothing."""
        if not self._settled and not in_backward():
            self._forward[module] = None

    def came(self, module: Any) -> None:
        """Note that the module waits for them: it uses them."""
        self._under_way.discard(module)

    def settle(self) -> None:
        """Keep the order that the first iteration had. Called where a backward pass ends."""
        if self._settled:
            return
        self._settled = True
        self._places.update({module: place for place, module in enumerate(self._forward)})
        for order, lists, choose in (
            (list(self._forward), "_states_to_forward_prefetch", "set_modules_to_forward_prefetch"),
            (list(self._backward), "_states_to_backward_prefetch", "set_modules_to_backward_prefetch"),
        ):
            if any(getattr(module._get_fsdp_state(), lists) for module in order):
                continue
            for place, module in enumerate(order):
                if following := order[place + 1 : place + 1 + AHEAD]:
                    getattr(module, choose)(following)

    def forward_ends(self, module: Any) -> None:
        """Let go of gatherings that the pass did not use. Called after the forward of each sharded module."""
        if not self._under_way or in_backward() or _context(module).iter_forward_root is not None:
            return
        for unused in list(self._under_way):
            unused.unshard()  # which waits for it
            unused.reshard()


_orders: weakref.WeakKeyDictionary[Any, ModuleOrder] = weakref.WeakKeyDictionary()


def order_of(module: Any) -> ModuleOrder:
    """Return the order of the model that the sharded module is in."""
    return _orders.setdefault(_context(module), ModuleOrder())


def _context(module: Any) -> Any:
    """Return what FSDP2 keeps for all modules of a model."""
    return module._get_fsdp_state()._state_ctx
