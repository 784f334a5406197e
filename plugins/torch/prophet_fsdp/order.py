"""The order in which modules need their parameters, and the all-gathers that run ahead of it.

Rule of this file: which module comes next. The first iteration shows the order of forward and of backward. From then on
each module has FSDP2 gather the next ones while it computes, through FSDP2's own lists of modules to prefetch. A
program that sets those lists keeps its own.

A prefetch that a forward pass did not use would be stale after the next update, so none outlives its pass. It is also
dropped if the program writes the parameters meanwhile: at its turn the module gathers them again. All ranks run the
same program, so they write at the same point. All-gathers that the program asks for itself stay as FSDP2 makes them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.life import PENDING
from prophet_scheduler.frontends.torch.references import in_backward
from prophet_scheduler.frontends.torch.slot import Slot

AHEAD = 2
"""Number of modules whose parameters are prefetched: one in flight, and one that has arrived or is next."""


class Following(list[Any]):
    """List of states that Prophet has a module prefetch; any other such list is the program's."""


class Ahead:
    """Prefetch of a module's parameters. For guards.py it is an owner of slots, and their use may end it."""

    def __init__(self, module: Any) -> None:
        self._module = weakref.ref(module)
        self._thread = threading.get_ident()
        params = [param.sharded_param for group in _groups(module) for param in group.fsdp_params]
        self._slots = [Slot(self, "", param, place) for place, param in enumerate(params)]
        for slot in self._slots:
            slot.assigned.owner, slot.life = self, PENDING
        torch_guards.keep_copies(self, self._slots)

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Drop the prefetch if the program may be about to write one of these parameters."""
        module = self._module()
        if module is not None and self._thread == threading.get_ident() and references.may_write():
            with references.at_work():
                module.unshard()  # Waits for the all-gather.
                module.reshard()
        return True

    def flush(self, patience_s: float | None = None) -> bool:
        """Do nothing: no program depends on a prefetch."""
        return True

    def over(self) -> None:
        """Stop watching: the module uses the prefetch."""
        torch_guards.release_copies(self, self._slots)


class ModuleOrder:
    """Order of a model's sharded modules."""

    def __init__(self) -> None:
        self._forward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._backward: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._ahead: weakref.WeakKeyDictionary[Any, Ahead] = weakref.WeakKeyDictionary()
        """Prefetches of a forward pass that have not been used yet."""
        self._leads = False
        """True if modules prefetch in forward because of Prophet."""
        self._settled = False
        self.forward_thread: int | None = None
        """Thread that runs forward; None before the first pass."""
        self._led: list[tuple[weakref.WeakKeyDictionary[Any, None], str, str]] = []
        """Orders in which modules gather ahead: FSDP2's names of a module's list and of the method that sets it."""
        self._places: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def gathers(self, module: Any) -> None:
        """Record that a module's parameters are on their way."""
        if self._leads and _is_ahead(module):
            self._ahead[module] = Ahead(module)
        if not in_backward():
            self.forward_thread = threading.get_ident()
        if self._settled:
            return
        if in_backward():
            self._backward[module] = None
        elif _context(module).iter_forward_root is not None:
            self._forward[module] = None

    def place(self, module: Any) -> int:
        """Return the module's place in forward; 0 if it is unknown. Alike on all ranks."""
        return self._places.get(module, 0)

    def forward_begins(self, module: Any) -> None:
        """Record the turn in forward of a module that gathers nothing."""
        if not in_backward():
            if not torch.compiler.is_compiling():  # Compiled programs wait for all averages anyway.
                self.forward_thread = threading.get_ident()
            if not self._settled:
                self._forward[module] = None

    def came(self, module: Any) -> None:
        """Record that the module waits for its parameters: it uses them."""
        ahead = self._ahead.pop(module, None)
        if ahead is not None:
            ahead.over()

    def settle(self) -> None:
        """Fix the order of the first iteration. Called when a backward pass ends."""
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
                state = module._get_fsdp_state()
                if following and getattr(state, lists) == before:
                    getattr(module, choose)(following if ahead else [])
                    setattr(state, lists, Following(getattr(state, lists)))

    def forward_ends(self, module: Any) -> None:
        """Drop prefetches that the pass did not use. Called after the forward of each sharded module."""
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
    """Return True for an all-gather in forward ahead of the module's turn, unless the program asks for it itself."""
    (group,) = _groups(module)
    state, forward = module._get_fsdp_state(), type(group._training_state).FORWARD
    if group._training_state is not forward or state._training_state is forward:
        return False
    computing = (each for each in _context(module).all_states if each._training_state is forward)
    lists = (each._states_to_forward_prefetch for each in computing)
    return not any(state in asked and not isinstance(asked, Following) for asked in lists)


def _context(module: Any) -> Any:
    """Return the state that FSDP2 shares among all modules of a model."""
    return module._get_fsdp_state()._state_ctx
