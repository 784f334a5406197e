"""A module whose gradients are averaged while nobody waits: backward returns, and each `.grad` awaits its average.

Rule of this file: when averages are in `.grad`, whichever engine brings them. When gradients leave, and what a round
is, is the engine's front end's; how updates come late is updates.py's, in which step() steps.py's, and who looks at a
gradient guards.py's to notice.

An engine whose wrapper of a module waits at the end of backward has its rounds of this kind. Whoever looks at a `.grad`
in between waits for that one, and step() passes it on to an update that comes when the parameter is next used.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from prophet.core.forks import free_in_forks
from prophet.frontends.notices import warn_once
from prophet.frontends.torch import clipping, references
from prophet.frontends.torch import guards as torch_guards
from prophet.frontends.torch.arena import Slot
from prophet.frontends.torch.probation import Probation
from prophet.frontends.torch.updates import COMPLAIN_S
from prophet.watch import training

WAIT_LIMIT_S = 0.05
"""Longest sleep between two looks at something whose end is told."""

_living: weakref.WeakSet[AwaitedRounds] = weakref.WeakSet()
_before: list[Callable[[Sequence[Any]], None]] = []
_in_backward = 0
_installed = False


class AwaitedRounds:
    """One module's. `named` are the parameters that are averaged, in forward order; `number` counts the modules of the
    process.

    What the engine's own adds: `_gradient_ready`, `arrived`, `landed`, `wait_activity` and `progress`.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], number: int) -> None:
        self.number = number
        self._slots = [Slot(self, name, param, place) for place, (name, param) in enumerate(named)]
        self._lock = free_in_forks(threading.RLock())
        self._fresh = False
        """Gradients have left since backward last returned."""
        self._probation = Probation()
        self._out_of_sight = False
        """The program uses parameters and gradients in a way that cannot be noticed."""
        self._outlasted = False
        """An update of the last round outlasted its step(), or would have but for the probation."""
        self._hooks: list[Any] = []
        self._accumulations: list[Any] = []
        self._ends: list[Any] = []

    def watch(self) -> None:
        """From now on gradients that backward makes come here. Once everything is there that they need."""
        watch_backward()
        clipping.install()
        _living.add(self)
        torch_guards.watch(self, self._slots)
        if torch_guards.after_compilation():
            self.keep_barrier()
        for slot in self._slots:
            param: Any = slot.param
            slot.watched.memory.note(param)
            self._hooks.append(param.register_hook(slot.hook("_gradient_comes")))
            # Of the node that adds to `.grad`, as torch's reducer does: after all hooks of the tensor, which may change
            # the gradient. Nobody else keeps the node.
            with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                accumulation = param.view_as(param).grad_fn.next_functions[0][0]
            self._accumulations.append(accumulation)
            self._ends.append(accumulation.register_hook(slot.hook("_gradient_ready")))

    @property
    def slots(self) -> Sequence[Slot]:
        """In forward order."""
        return self._slots

    @property
    def barrier(self) -> bool:
        """Whether step() waits for all updates."""
        return self._probation.barrier

    @property
    def learning(self) -> bool:
        """Whether that is so only until it is known how the program reaches its parameters."""
        return self._probation.under_way

    @property
    def wanted_whole(self) -> bool:
        """Whether the program looks at all averages before it uses any, as far as is known."""
        return False

    # The engine's part.

    def arrived(self, slot: Slot) -> bool:
        """Whether the average of this round is at its place in the arena. To be asked no more where it is."""
        raise NotImplementedError

    def landed(self, slot: Slot) -> bool:
        """Whether it has arrived, and no stream would have to wait for it either."""
        return self.arrived(slot)

    def wait_activity(self, limit_s: float) -> None:
        """Returns when something has arrived, and after so many seconds in any case."""
        raise NotImplementedError

    def progress(self) -> object:
        """Differs from what it was before where something has moved since."""
        raise NotImplementedError

    def norms(self, slots: Sequence[Slot]) -> torch.Tensor | None:
        """The norms of these averages, which are awaited, shape [slots], in the bits that torch would have for each;
        None where only who has them all can tell. Waits for norms, and for no average.
        """
        return None

    # What backward says.

    def backward_ends(self) -> None:
        """The outermost backward pass has returned."""
        if not self._fresh:
            return
        with references.at_work():
            self._fresh = False
            self._gathered()
            awaited = [slot for slot in self._slots if slot.awaited]
            if not any(slot.staged for slot in self._slots):  # A round has ended.
                for slot in awaited:
                    slot.expect()
            shared, lent = torch_guards.keep_gradients(self, awaited)
            for slot in shared:
                slot.part()
        unseen = awaited if self._out_of_sight else lent
        if unseen:
            self.settle(unseen)

    def _gathered(self) -> None:
        """It has made gradients of this module."""

    def _gradient_comes(self, slot: Slot) -> None:
        """A gradient is about to be added to `.grad`, in which the average of the last round belongs first."""
        slot.late |= slot.pending
        self._bring_home(slot)

    def _bring_home(self, slot: Slot) -> None:
        """Makes the update or the average that is to come of the last round."""
        if slot.pending:
            slot.owner.finish([slot])
        elif slot.awaited:
            self.settle([slot])

    # Averages on their way back.

    def settle(self, slots: Iterable[Slot]) -> None:
        """Waits until `.grad` of these is their average. What belongs to a round that is open stays this rank's own, as
        it does in torch: a later backward pass makes the rest.
        """
        with self._lock, references.at_work(), torch.no_grad():
            due = [slot for slot in slots if slot.awaited and not slot.staged]
            there: list[Slot] = []
            for slot in due:
                if not slot.home and not self.arrived(slot):
                    self._land(there)
                    there = []
                    self._wait_for(slot)
                there.append(slot)
            self._land(there)
            for slot in due:
                slot.awaited = False
                slot.streams.before_look(slot.updated)
            self.let_go()

    def let_go(self) -> None:
        """Where no average is under way to a `.grad`, none is watched."""
        # Who looks at all of them, one after another, begins with the first.
        if not any(slot.awaited for slot in reversed(self._slots)):
            torch_guards.release(self)

    def _land(self, slots: Sequence[Slot]) -> None:
        with references.unhandled():
            for slot in slots:
                if not slot.home:  # A signal's handler may have come while another was waited for, and looked at it.
                    slot.streams.before_average(slot.ends())
                    slot.bring_home()
                    slot.home = True
                    slot.updated = slot.streams.mark()

    def _land_meanwhile(self) -> bool:
        """While another is waited for: copies what has landed to its `.grad`, up to the first that has not. Whether any
        has. Nobody has asked for these yet, so they stay awaited.
        """
        landed: list[Slot] = []
        for slot in reversed(self._slots):  # as they are generated, as a rule
            if slot.home or not slot.awaited or slot.staged or len(slot.watched.slots) > 1:
                continue
            if not self.landed(slot):
                break
            landed.append(slot)
        self._land(landed)
        return bool(landed)

    def flush(self, patience_s: float | None = None) -> bool:
        """Brings home every average that is under way to a `.grad`, and every update of these parameters."""
        whole = True
        for owner in {slot.owner for slot in self._slots if slot.pending}:
            whole = owner.flush(patience_s) and whole
        self.settle(self._slots)
        return whole

    def keep_barrier(self) -> None:
        """From now on no update outlasts step(), and no average its backward pass."""
        self._out_of_sight = True
        self.wait_in_step()

    def wait_in_step(self) -> None:
        """From now on no update outlasts step()."""
        self._probation.for_good()
        torch_guards.learned(self)
        for owner in {slot.owner for slot in self._slots if slot.pending}:
            owner.flush()

    def before_compilation(self) -> None:
        """torch.compile is about to make code of a module of the program; these hooks are on parameters alone."""

    def stepped(self) -> None:
        """An optimizer of these parameters has stepped, and made some of its updates late."""
        for slot in self._slots:
            slot.touched = slot.late = False
        self._outlasted |= self.learning or any(slot.pending for slot in self._slots)
        self._probation.stepped()
        torch_guards.note_uses(self, self._probation.watches)

    def _iterated(self) -> bool:
        """The next iteration has begun: whether nothing of the one before was still to come by then."""
        waited = not self._outlasted and not any(slot.awaited for slot in self._slots)
        self._outlasted = False
        if waited:
            self._probation.in_vain()
            torch_guards.note_uses(self, self._probation.watches)
        return waited

    def _wait_for(self, slot: Slot) -> None:
        complain_at: float | None = None
        while not self.arrived(slot):
            if self.wanted_whole and self._land_meanwhile():
                continue
            now = time.monotonic()
            complain_at = complain_at or now + COMPLAIN_S
            if now > complain_at:
                warn_once(f"still waiting for the gradient of {slot.name} after {COMPLAIN_S:.0f} s")
            training.waiting(slot.name, now, slot.blocks)
            with references.waiting():
                self.wait_activity(WAIT_LIMIT_S)
        if complain_at is not None:
            training.over(time.monotonic())


def watch_backward() -> None:
    """From now on rounds are told when a backward pass has returned, however the program came by torch's functions."""
    global _installed
    if _installed:
        return
    _installed = True
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        global _in_backward
        if _in_backward == 0:
            for tell in list(_before):
                tell(args[0])
        _in_backward += 1
        try:
            return original(*args, **kwargs)
        finally:
            _in_backward -= 1
            if _in_backward == 0:
                for rounds in list(_living):
                    rounds.backward_ends()

    autograd._engine_run_backward = run


def before_backward(tell: Callable[[Sequence[Any]], None]) -> Callable[[], None]:
    """From now on `tell` gets what each outermost backward pass begins from, before it runs. What is returned ends
    that.
    """
    watch_backward()
    _before.append(tell)

    def leave() -> None:
        with contextlib.suppress(ValueError):
            _before.remove(tell)

    return leave
