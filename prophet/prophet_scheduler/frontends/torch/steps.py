"""step() of the program's own optimizers: late updates for gradients averaged by a module wrapper.

Rule of this file: which optimizers make late updates, and what a step does then. updates.py makes the late updates;
awaited.py knows when an average is in `.grad`.

Since the program wraps no optimizer, the classes of torch.optim are patched: their step() calls this file first. An
optimizer whose gradients are awaited gets `ModuleUpdates` and keeps its class. All others step as without Prophet, and
wait for whatever they read, since guards.py watches gradients.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim import optimizer as torch_optimizer

from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.awaited import WAIT_LIMIT_S, AwaitedRounds
from prophet_scheduler.frontends.torch.life import FORGET, PROMISED, move
from prophet_scheduler.frontends.torch.optimizer import begin, has_begun, step_owner, updates_of, why_not_late
from prophet_scheduler.frontends.torch.slot import Assignment, Slot
from prophet_scheduler.frontends.torch.updates import AverageSource, Updates, own_hooks

_installed = False


class ModuleUpdates(Updates):
    """Updates of one optimizer, whose parameters may belong to several modules.

    This object lives as long as the optimizer, and as long as any update is pending.
    """

    def _none_pending(self) -> None:
        super()._none_pending()
        rounds = {slot.rounds for slot in self._order}
        self._order, self._wire = [], _Wire(())
        for each in rounds:
            each.end()

    def can_be_late(self) -> bool:
        """Return True if this step may return before its updates are made. If False, gradients now hold averages."""
        if not self._needs_whole_step():
            return True
        self.flush()
        self._settle_others()
        for slot in self._slots():
            slot.rounds.settle([slot])
        return False

    def idle(self) -> bool:
        """Return True if nothing in this step is or was late: no gradient was averaged, or torch's reducer did it."""
        if self._needs_whole_step():
            return False
        return not any(slot.life.to_come or slot.life.staged for slot in self._slots())

    def step_at_once(self, step: Callable[[torch.optim.Optimizer], Any]) -> Any:
        """Run the class's own step, which involves no code of the program."""
        self._settle_others()
        with self._stepping():
            return step(self._optimizer)

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Update parameters with awaited averages late, and the others at once with their present `.grad`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.flush()
        self._settle_others()
        with self.updating:  # Other threads that use parameters may still be at the end of the last update.
            late: list[Slot] = []
            local: dict[int, list[torch.Tensor]] = {}
            with references.at_work(), references.unhandled():
                for number, position, param in self._freeze_groups():
                    slot = self._awaited(param)
                    if slot is not None and slot.life.due and slot.grad_unchanged():
                        slot.assigned = Assignment(self, position=position, group=number)
                        late.append(slot)
                        continue
                    if param.grad is not None:
                        local.setdefault(number, []).append(param)
                    if slot is not None and slot.life.due and slot.sent() is None:
                        # The gradient was cleared or written, and nothing holds it any more to read its average.
                        move((slot,), FORGET)
                self._order = sorted(late, key=lambda slot: (slot.rounds.number, slot.place))
                for turn, slot in enumerate(self._order):
                    slot.assigned.turn = turn
                rounds = dict.fromkeys(slot.rounds for slot in self._order)
                if rounds:
                    self._wire = _Wire(list(rounds))
            try:
                self._defer(self._order, local, barrier=any(each.barrier for each in rounds))
            finally:
                for each in rounds:
                    each.let_go()
        for each in rounds:
            each.stepped()
        return loss

    def _slots(self) -> Iterator[Slot]:
        for _, param in self._grouped():
            yield from torch_guards.slots_of(param)

    @staticmethod
    def _awaited(param: torch.Tensor) -> Slot | None:
        """Return the slot that receives the parameter's average. If several modules await it, or the step is made
        within a backward pass, settle `.grad` first.
        """
        slots = torch_guards.slots_of(param)
        awaited = [slot for slot in slots if slot.life.due]
        for slot in slots:
            if slot.life is PROMISED or len(awaited) > 1:
                slot.rounds.settle([slot])
        return awaited[0] if awaited else next(iter(slots), None)


class _Wire(AverageSource):
    """Averages of several modules, for an optimizer that waits for them."""

    def __init__(self, rounds: Sequence[AwaitedRounds]) -> None:
        self._rounds = rounds

    def arrived(self, slot: Slot) -> bool:
        return bool(slot.rounds.arrived(slot))

    def landed(self, slot: Slot) -> bool:
        return bool(slot.rounds.landed(slot))

    def wait_activity(self, limit_s: float) -> None:
        if not self._rounds:
            return  # A signal handler has had all updates made meanwhile.
        # Usually there is one module, which announces arrivals. With several, wait briefly and check all of them.
        self._rounds[0].wait_activity(WAIT_LIMIT_S if len(self._rounds) == 1 else limit_s)

    def progress(self) -> object:
        return [each.progress() for each in self._rounds]

    def others(self) -> str:
        return self._rounds[0].others() if self._rounds else ""


def _updates_of(optimizer: torch.optim.Optimizer) -> ModuleUpdates | None:
    """Return the maker of the optimizer's late updates; None if its updates are not late."""
    _begin(optimizer)
    updates = updates_of(optimizer)
    return updates if isinstance(updates, ModuleUpdates) else None


def _begin(optimizer: torch.optim.Optimizer) -> None:
    """Decide how an optimizer steps, when it first does so with averaged parameters."""
    if has_begun(optimizer) or references.is_blind():  # If blind, Prophet itself runs the class's step() for an update.
        return
    params = (param for group in optimizer.param_groups for param in group["params"])
    if slots := [slot for param in params for slot in torch_guards.slots_of(param)]:
        reason = why_not_late(optimizer, any(slot.partial for slot in slots))
        if reason is not None:
            warn_once(f"updates are made within step(), none of them late: {reason}")
        begin(optimizer, ModuleUpdates(optimizer, type(optimizer)) if reason is None else None)


def _before_step(optimizer: torch.optim.Optimizer) -> None:
    """Decide how an optimizer steps. Its own step() may read in C++, so first finish everything that it may read."""
    _begin(optimizer)
    if updates_of(optimizer) is None and not references.is_blind():
        slots = (slot for group in optimizer.param_groups for p in group["params"] for slot in torch_guards.slots_of(p))
        torch_guards.use(tuple(slot for slot in slots if slot.life.to_come))


def install() -> None:
    """Make optimizers of averaged parameters step late from now on."""
    global _installed
    if _installed:
        return
    _installed = True
    base = torch.optim.Optimizer
    for kind in vars(torch.optim).values():
        if isinstance(kind, type) and issubclass(kind, base) and "step" in vars(kind) and kind is not base:
            _stand_before(kind)
    # Optimizers from elsewhere have their own step().
    own_hooks.add(torch_optimizer.register_optimizer_step_pre_hook(lambda self, *_: _before_step(self)).id)
    for candidate in gc.get_objects():
        if issubclass(type(candidate), base):
            _stand_behind_schedule(candidate)


def _stand_behind_schedule(optimizer: torch.optim.Optimizer) -> None:
    """Replace the wrapper with which an earlier learning rate scheduler notes calls of step(), since it holds the old
    step(). The new wrapper also notes the call, but calls the present step().
    """
    own = vars(optimizer)
    noting: Any = own.get("step")
    if getattr(getattr(noting, "__code__", None), "co_filename", None) != lr_scheduler.__file__:
        return
    reference = weakref.ref(optimizer)

    @passed_over
    @functools.wraps(noting)
    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer: Any = reference()
        optimizer._opt_called = True
        return type(optimizer).step(optimizer, *args, **kwargs)

    own["step"] = step


def _stand_before(kind: type[torch.optim.Optimizer]) -> None:
    original: Any = vars(kind)["step"]

    @passed_over
    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if kind is step_owner(type(self)) and not (args[1:] or set(kwargs) - {"closure"} or references.is_blind()):
            updates = _updates_of(self)
            if updates is not None:
                torch_guards.leave_references()  # A program that has read all gradients has nothing left to wait for.
                closure = args[0] if args else kwargs.get("closure")
                if closure is None and updates.idle():
                    return updates.step_at_once(original)
                if updates.can_be_late():
                    return updates.step(closure)
        return original(self, *args, **kwargs)

    # torch wraps step() with its hooks when the first object of a class is created, and marks it by this attribute.
    if getattr(original, "hooked", False):
        step.hooked = True  # type: ignore[attr-defined]
    kind.step = step  # type: ignore[method-assign]
