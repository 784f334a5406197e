"""BytePS's rounds without the barrier: one optimizer's gradients, from backward to the updates that use them.

Rule of this file: when gradients leave, and what step() and synchronize() do.
prophet_scheduler/frontends/torch/updates.py makes updates, keyed_rounds.py has rounds of blocks.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from prophet_byteps.torch.keyed_rounds import SIGHT, KeyedRounds, KeyedWire
from prophet_byteps.torch.keys import Engine
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.awaited import watch_backward
from prophet_scheduler.frontends.torch.probation import Probation
from prophet_scheduler.frontends.torch.slot import Assignment, Slot
from prophet_scheduler.frontends.torch.updates import Updates, unseen_use


class OptimizerRounds(Updates, KeyedWire):
    """Rounds of one optimizer's gradients, and its pending updates.

    `named` are the parameters that BytePS averages, in forward order. `unnamed` are those that it cannot average for
    lack of a name. `passes` backward passes make up a gradient. `user_class` is the torch.optim class that `optimizer`
    extends. `half` is the type to which gradients are rounded for the wire, as by Compression.fp16; None for their own
    type. `number` is the number of optimizers that the program wrapped before.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        user_class: type[torch.optim.Optimizer],
        named: Iterable[tuple[str, torch.Tensor]],
        unnamed: Sequence[torch.Tensor],
        engine: Engine,
        passes: int,
        fusion: bool,
        half: torch.dtype | None = None,
    ) -> None:
        super().__init__(optimizer, user_class)
        self._wire = self
        self.should_synchronize = True
        self.passes = self._passes = passes
        """Number of backward passes in a round: in the next one, and in this one."""
        self._unnamed = unnamed
        self._slots = {id(param): Slot(self, name, param, n) for n, (name, param) in enumerate(named)}
        self._order = list(self._slots.values())
        for slot in self._order:
            slot.assigned = Assignment(self, slot.place)
        self.number = engine.take_number()
        self._keyed = KeyedRounds(self._order, fusion, engine, self.number, "without a barrier", half, self.flush)
        self._came: dict[Slot, int] = {}
        """Number of backward passes that each gradient has had in this round."""
        self._synchronized = False
        self._probation = Probation()
        watch_backward()
        torch_guards.watch(self, self._order)
        self._ready_hooks = [slot.attend()[1] for slot in self._order]

    # Called by the optimizer's methods.

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Take this round's gradients for an update, and wait only for averages that cannot be used later.

        As with BytePS's, a closure finds averages of what was there before. It may make new gradients and average them.
        """
        programs = closure is not None or self._needs_whole_step()
        if (whole := programs or self._gradients_changed()) and self.should_synchronize:
            self.synchronize()
        self.flush()
        self._settle_others()
        if whole or not self.should_synchronize:
            within = [] if closure is None else [functools.partial(self._averaged, closure)]
            # Code of the program may run within, and use other optimizers' parameters.
            with contextlib.nullcontext() if programs else self._stepping():
                loss = self._user_class.step(self._optimizer, *within)
            waited, self._synchronized = self._synchronized, False
            if waited:
                self._keyed.iterated(waited=True)
                self._probation.in_vain()
                torch_guards.note_uses(self, self._probation.watches)
            return loss
        waited, self._synchronized = self._synchronized, False
        with references.at_work():
            self._push_missing()
            local = self._take_groups()
            self._next_round()
        self._defer(self._order, local, barrier=self._probation.barrier or self._keyed.tracing)
        late = self._probation.under_way or self._keyed.tracing or any(slot.life.pending for slot in self._order)
        self._keyed.iterated(waited=waited or not late)
        self._probation.stepped()
        torch_guards.note_uses(self, self._probation.watches)
        return None

    def _averaged(self, closure: Callable[[], Any]) -> Any:
        """Call the closure within the optimizer's own step, and average the gradients that it has made."""
        loss = closure()
        if self.should_synchronize and not self._synchronized:
            self.synchronize()
        self.flush()
        self._settle_others()
        return loss

    def synchronize(self) -> None:
        """Wait for everything; afterwards each parameter's `.grad` is its averaged gradient.

        If `.grad` has been averaged already, average it once more, as BytePS does: workers may have changed it. This is
        always a round, whatever happened here since the last one: it may have been something else on other workers.
        """
        self.flush()
        self._push_missing()
        with self.updating, torch.no_grad():
            for slot in self._order:
                self._wait_for([slot])
                if slot.param.requires_grad or slot.param.grad is not None:
                    slot.put_in_grad()
                else:  # Frozen since it was wrapped.
                    slot.see(None)
            self._next_round()
        self._synchronized = True

    def keep_barrier(self) -> None:
        """From now on, finish every update within its step()."""
        self._keyed.give_up_trace(SIGHT)
        self._probation.for_good()
        torch_guards.note_uses(self, False)
        self.flush()

    def dropped(self) -> None:
        """Handle an optimizer that the program has dropped, without waiting: send no more of its gradients, and let the
        program drop the parameters.
        """
        for hook in self._ready_hooks:
            hook.remove()
        torch_guards.may_go(self._order)

    def expect_nothing(self) -> None:
        """Make no pending update: its averages never come."""
        self.forget(self._order)

    def set_passes(self, passes: int) -> None:
        self.passes = self._passes = passes
        self._came.clear()

    def restart(self) -> None:
        """Forget rounds: after a suspend all workers, some of them new, start with the same keys."""
        with self.updating:
            self._synchronized = False
            self._came.clear()
            self._keyed.restart()

    # Sending gradients.

    def _gradient_comes(self, slot: Slot, *_gradient: Any) -> None:
        """Finish the last round's update before a gradient is added to `.grad`.

        An update is still pending if the gradient's graph was built before step(), or by a use that went unnoticed.
        """
        if slot.life.pending:
            slot.comes()
            self.finish([slot])

    def _gradient_ready(self, slot: Slot, *_param: Any) -> None:
        with self.updating:  # This runs in Prophet's hook, so nothing here counts as a use.
            self._plan()
            if slot.life.staged:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). "
                    "Increase backward_passes_per_step to accumulate gradients locally."
                )
            if unseen_use(slot, on_probation=self._probation.watches):
                self.keep_barrier()
            self._synchronized = False
            came = self._came[slot] = self._came.get(slot, 0) + 1
            if came == self._passes:
                self._stage(slot)

    def _stage(self, slot: Slot) -> None:
        """Send a gradient, with a version counter of its own. Views of one memory share one: another gradient would
        count as a write to this one.
        """
        grad = slot.param.grad
        if grad is not None and grad._is_view() and not grad.requires_grad:
            slot.param.grad = grad.data
        self._keyed.stage(slot)

    def _plan(self) -> None:
        """Prepare the keys before the first gradient leaves. Raises ValueError if a parameter has no name."""
        if self._unnamed:
            raise ValueError(
                f"{len(self._unnamed)} parameters of {self._user_class.__name__} are not among the named_parameters "
                f"that DistributedOptimizer was given (the first has shape {list(self._unnamed[0].shape)}); "
                "BytePS sends gradients by name"
            )
        self._keyed.plan()

    def _next_round(self) -> None:
        self._came.clear()
        self._passes = self.passes
        self._keyed.next_round()

    def _push_missing(self) -> None:
        with self.updating, references.blind():
            self._plan()
            for slot in self._keyed.missing():
                self._stage(slot)

    def _take_groups(self) -> dict[int, list[torch.Tensor]]:
        """Freeze the current hyper-parameters. Return, by group, the parameters whose gradients are not averaged.

        Those were frozen when the optimizer was wrapped. Like BytePS, step() updates them with the local gradient.
        """
        local: dict[int, list[torch.Tensor]] = {}
        for slot in self._order:
            slot.assigned.group = None
        with references.blind():
            for number, position, param in self._freeze_groups():
                own = self._slots.get(id(param))
                if own is None:
                    if param.grad is not None:
                        local.setdefault(number, []).append(param)
                elif param.requires_grad or param.grad is not None:
                    own.assigned.group, own.assigned.position = number, position
        return local

    def _gradients_changed(self) -> bool:
        """Return True, with a warning, if the program has changed gradients that have left. Averages replace them."""
        with references.blind():
            changed = any(slot.life.staged and not slot.grad_as_seen() for slot in self._order)
        if changed:
            warn_once(
                "gradients were changed between backward() and step(), after they had left; "
                "call optimizer.synchronize() before changing them"
            )
        return changed
