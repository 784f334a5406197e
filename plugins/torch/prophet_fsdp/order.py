"""The order in which modules need their parameters, and the gatherings begun ahead of it.

Rule of this file: which module comes next. The first iteration shows the order of forward and of backward. From then on
each module lets FSDP2 gather the next ones while it computes, by FSDP2's own lists of modules to prefetch. A program
that sets those itself keeps its own.

A gathering that a forward pass did not use would be old after the next update, so none outlives its pass. One is let go
of as well if the program writes the parameters meanwhile: at its turn the module gathers them again. All ranks run the
same program, so they write at the same place. Gatherings that the program itself asks for are as FSDP2 has them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.arena import Slot
from prophet_scheduler.frontends.torch.life import PENDING
from prophet_scheduler.frontends.torch.references import in_backward

AHEAD = 2
"""Modules whose parameters are gathered ahead: one that travels, and one that is there or next."""


class Ahead:
    """Gathering of a module's parameters ahead of its turn, as guards.py sees it: an owner of what a use may end."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)
        self._thread = threading.get_ident()
        params = [param.sharded_param for group in _groups(module) for param in group.fsdp_params]
        self._slots = [Slot(self, "", param, place) for place, param in enumerate(params)]
        for slot in self._slots:
            slot.owner, slot.life = self, PENDING
        torch_guards.keep_copies(self, self._slots)

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Let go of it, if the program is about to write one of these."""
        module = self._module()
        if module is not None and self._thread == threading.get_ident() and references.may_write():
            with references.at_work():
                module.unshard()  # which waits for it
                module.reshard()
        return True

    def flush(self, patience_s: float | None = None) -> bool:
        """Do nothing: it is of no program's business."""
        return True

    def over(self) -> None:
        """Note that the module uses it, or that nobody will."""
        torch_guards.release_copies(self, self._slots)


class ModuleOrder:
    """Order of the sharded modules of a model."""

    def __init__(self) -> None:
        self._forward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._backward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._ahead: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()
        """Gatherings of a forward pass that are ahead of their turn."""
        self._leads = False
        """True if modules gather ahead in forward because of us."""
        self._settled = False
        self._led: list[tuple[weakref.WeakKeyDictionary[Any, None], str, str]] = []
        """Orders in which modules gather ahead: FSDP2's names of a module's list and of the method that sets it."""
        self._places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def gathers(self, module: Any) -> None:
        """Note that a module's parameters are on their way."""
        if self._leads and _is_ahead(module):
            self._ahead[module] = Ahead(module)
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
        ahead = self._ahead.pop(module, None)
        if ahead is not None:
            ahead.over()

    def settle(self) -> None:
        """Keep the order that the first iteration had. Called where a backward pass ends."""
        if self._settled:
            return
        self._settled = True
        self._places.update({module: place for place, module in enumerate(self._forward)})
        for order, lists, choose in (
            (self._forward, "_states_to_forward_prefetch", "set_modules_to_forward_prefetch"),
            (self._backward, "_states_to_backward_prefetch", "set_modules_to_backward_prefetch"),
        ):
            if not any(getattr(module._get_fsdp_state(), lists) for module in order):
                self._led.append((order, lists, choose))
        self._leads = any(order is self._forward for order, *_ in self._led)
        self.lead(True)

    def lead(self, ahead: bool) -> None:
        """Have each module gather the next ones ahead from now on, or none of them, unless the program has chosen."""
        for order, lists, choose in self._led:
            modules = list(order)
            for place, module in enumerate(modules):
                following = modules[place + 1 : place + 1 + AHEAD]
                before = [] if ahead else [each._get_fsdp_state() for each in following]
                if following and getattr(module._get_fsdp_state(), lists) == before:
                    getattr(module, choose)(following if ahead else [])

    def forward_ends(self, module: Any) -> None:
        """Let go of gatherings that the pass did not use. Called after the forward of each sharded module."""
        if not self._ahead or in_backward() or _context(module).iter_forward_root is not None:
            return
        for ahead in list(self._ahead.values()):
            ahead.finish(())


_orders: weakref.WeakKeyDictionary[Any, ModuleOrder] = weakref.WeakKeyDictionary()


def order_of(module: Any) -> ModuleOrder:
    """Return the order of the model that the sharded module is in."""
    return _orders.setdefault(_context(module), ModuleOrder())


def _groups(module: Any) -> Any:
    return module._get_fsdp_state()._fsdp_param_groups


def _is_ahead(module: Any) -> bool:
    """Return True for a gathering of a forward pass before the module's turn, unless the program asks for it itself."""
    (group,) = _groups(module)
    gathers, computes = group._training_state, module._get_fsdp_state()._training_state
    return bool(gathers is type(gathers).FORWARD and computes is not gathers)


def _context(module: Any) -> Any:
    """Return what FSDP2 keeps for all modules of a model."""
    return module._get_fsdp_state()._state_ctx
