"""Gradients averaged in the background: backward returns, and each `.grad` of the module awaits its average.

Rule of this file: when averages are put in `.grad`, on any engine. The engine's front end decides when gradients are
sent, and what a round is. updates.py makes late updates, steps.py assigns them to a step(), and guards.py detects
accesses to a gradient.

Rounds of this kind are for engines whose module wrapper would wait at the end of backward. A program that accesses a
`.grad` in the meantime waits for that one. step() hands the average to an update, made at the parameter's next use.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.importlib_bootstrap import passed_over
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import clipping, life, references
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch.life import AWAITED, FORGET, LAND, SETTLE, Sight, move
from prophet_scheduler.frontends.torch.memory import overlapping
from prophet_scheduler.frontends.torch.probation import Probation
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.updates import Abandoned, AverageSource, LongWait

ANY = 0
"""No thread's number: for gradients on devices, which torch makes in threads of its own."""
WAIT_LIMIT_S = 0.05
"""Maximum sleep in seconds between two checks for an event that is also announced."""

logger = logging.getLogger("prophet_scheduler")
_before: list[Callable[[Sequence[Any]], None]] = []
_running: set[int] = set()
"""Threads with a backward pass begun by Python that has not returned."""
_installed = False
_within: list[Callable[[], bool]] = []
"""Functions, one for each engine that may make `.grad` within backward, where the program may access it: True if the
next backward pass may."""


class AwaitedRounds(AverageSource):
    """Rounds of one module. `named`: the averaged parameters in forward order. `number`: the module's number in the
    process.

    An engine adds `_gradient_ready` and the methods of an AverageSource.
    """

    label = ""
    """Name of the module in messages."""
    slot_type = Slot

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], number: int) -> None:
        self.number = number
        self.slots = [self.slot_type(self, name, param, place) for place, (name, param) in enumerate(named)]
        """In forward order."""
        self._lock = free_in_forks(threading.RLock())
        self._fresh: int | None = None
        """Thread whose backward pass sends gradients and has not returned, or ANY; None if there is none."""
        self._probation = Probation()
        self._out_of_sight = False
        """True if the program uses parameters and gradients in a way that cannot be detected."""
        self._outlasted = False
        """True if an update of the last round outlasted its step(), or would have without the probation."""
        self._learned = False
        """True if a step() since the last round began waited only to learn how the program reaches its parameters."""
        self.hooks: list[tuple[Any, Any]] = []
        """Handles of each slot's two hooks (`Slot.attend`)."""
        self._forward_thread: int | None = None
        """Thread in which uses of gradients are detected; backward may run in another."""
        self._told = False
        """True if, during this object's life, the program has had an error for averages that never arrived, here or
        elsewhere."""
        self._held: Any = None
        """Second reference to the parameters, outside Python: torch refuses to swap a tensor held in this way."""
        self._is_dropped = False
        self._graphs: list[Slot] = []
        """Gradients since the end of the last round that are part of an autograd graph."""

    def watch(self) -> None:
        """Receive the gradients that backward makes from now on. Call this once everything is set up for them."""
        self._attend()
        self.hooks = [slot.attend() for slot in self.slots]
        self._held = torch._C.ScriptList([slot.param for slot in self.slots])

    def _attend(self) -> None:
        """Detect the end of each backward pass and every use of parameters and gradients from now on."""
        watch_backward()
        clipping.install()
        torch_guards.watch(self, self.slots)

    def retire(self) -> None:
        """Receive no more gradients, and let operations in flight end. Wait for nothing."""
        for _, ready in self.hooks:
            ready.remove()
        self._held = None

    @property
    def barrier(self) -> bool:
        """True if step() waits for all updates."""
        return self._probation.barrier or self.tracing

    @property
    def learning(self) -> bool:
        """True if step() waits only until it is known how the program reaches its parameters."""
        return self._probation.under_way or self.tracing

    @property
    def tracing(self) -> bool:
        """True if forward passes are traced, so that no update may outlast step()."""
        return False

    @property
    def wanted_whole(self) -> bool:
        """True if the program is known to access all averages before it uses any."""
        return False

    # The engine's part.

    @property
    def iteration(self) -> int:
        """Number of the newest round, from 1 on."""
        raise NotImplementedError

    @property
    def failed(self) -> bool:
        """True if no more averages will arrive because a peer is gone."""
        return False

    def wait_activity(self, limit_s: float) -> None:
        try:
            self._wait_wire(limit_s)
        except Exception as error:
            if self.failed and self.abandon():
                raise Abandoned(str(error)) from error
            raise

    def _wait_wire(self, limit_s: float) -> None:
        """Wait as in `wait_activity`. Raises the engine's error."""
        raise NotImplementedError

    def _loss(self) -> str:
        """Return a phrase with the reason of the failure, and the lost peer if known."""
        raise NotImplementedError

    def norms(self, slots: Sequence[Slot], order: float) -> torch.Tensor | None:
        """Return the norms of this order of these awaited averages, shape [slots], as torch would compute each:
        bit-identical if sums are the same in any order.

        None if only a rank with all averages can compute them. Waits for norms, but for no average.
        """
        return None

    @property
    def norms_are_rounded(self) -> bool:
        """True if `norms` may be known, and differ from torch's by rounding."""
        return False

    # Events of backward.

    def backward_ends(self) -> None:
        """Handle the return of this thread's outermost backward pass."""
        fresh = self._fresh
        if fresh is None:
            self._nothing_came()
        if fresh not in (ANY, threading.get_ident()):  # The pass that has returned is another thread's.
            return
        with references.at_work():
            self._fresh = None
            self._gathered()
            awaited = [slot for slot in self.slots if slot.life.awaited]
            if not any(slot.life.staged for slot in self.slots):  # A round has ended.
                for slot in awaited:
                    slot.expect()
            shared, lent = torch_guards.keep_gradients(self, awaited)
            for slot in shared:
                slot.part()
            mixed = self.in_torch_order(overlapping((slot, slot.sent()) for slot in shared))
        graphs = [slot for slot in self._graphs if slot.life.awaited]
        if graphs:
            warn_once(
                "backward(create_graph=True) waits for its averages, and their graphs are this rank's own, as with "
                "DistributedDataParallel alone"
            )
        elsewhere = self._forward_thread not in {None, threading.get_ident(), *_running}
        out_of_sight = self._out_of_sight or elsewhere or not torch_guards.main_is_seen()
        unseen = awaited if out_of_sight else [*lent, *graphs]
        if mixed or unseen:
            self.settle([*mixed, *unseen])
        self._graphs = [slot for slot in graphs if slot.life.staged]
        if life.validating:
            self.validate()
        self._returned()

    def validate(self) -> None:
        """Check, outside of a backward pass, that accesses to awaited averages will be detected."""
        with self._lock, references.at_work():
            for slot in self.slots:
                assert not slot.life.due or torch_guards.pending.has(slot), (slot.name, slot.life)

    def in_torch_order(self, slots: set[Slot]) -> list[Slot]:
        """Return the slots in the order in which the engine without Prophet would copy averages to `.grad`."""
        return [slot for slot in self.slots if slot in slots]

    def _gathered(self) -> None:
        """Note that the backward pass has made gradients of this module."""

    def _returned(self) -> None:
        """Handle the return of a backward pass, when all of its gradients are awaited or settled."""

    def _nothing_came(self) -> None:
        """Note the return of a backward pass while none, in any thread, has sent gradients of this module."""

    def _left(self, slot: Slot, in_graph: bool) -> None:
        """Note that a gradient was sent; `in_graph` if it is part of an autograd graph."""
        if in_graph:
            self._graphs.append(slot)
        if self._fresh is not None:
            return
        self._fresh = threading.get_ident() if slot.param.is_cpu else ANY
        begun = threading.get_ident() in _running if slot.param.is_cpu else _running
        if not begun and references.in_backward():
            warn_once("backward passes run outside Python's sight; from now on they wait for their averages")
            self.keep_barrier()
            engine: Any = torch.autograd.Variable._execution_engine  # type: ignore[attr-defined]
            engine.queue_callback(self.backward_ends)

    def _lacks(self, slot: Slot, gradients: Sequence[torch.Tensor | None]) -> None:
        """Handle a gradient reported as ready whose `.grad` is None. Raises RuntimeError if it went elsewhere."""
        if gradients[0] is None or not slot.param.requires_grad:
            return  # An autograd function returned None, or the parameter was frozen after forward: counts as zeros.
        if not slot.param._post_accumulate_grad_hooks:  # type: ignore[attr-defined]
            raise RuntimeError(
                f"the gradient of {slot.name} did not arrive in its .grad, as with distributed autograd: Prophet "
                "cannot average it. Train without Prophet"
            )
        warn_once(f"a hook of the program took away the gradient of {slot.name}, so zeros are averaged in its place")

    def _gradient_comes(self, slot: Slot, *_gradient: Any) -> None:
        """Put the last round's average into `.grad` before backward adds a new gradient to it."""
        if slot.life.to_come:
            slot.comes()
            self._bring_home(slot)

    def _bring_home(self, slot: Slot) -> None:
        """Make the pending update of the last round, or settle the awaited average."""
        if slot.life.pending:
            slot.owner.finish([slot])
        elif slot.life.awaited:
            self.settle([slot])

    # Averages on their way back.

    def settle(self, slots: Iterable[Slot]) -> None:
        """Wait until `.grad` of these slots holds the average. Gradients of an open round remain this rank's own, as in
        torch: a later backward pass completes the round.
        """
        with (
            self._lock,
            references.at_work(),
            torch.inference_mode(False),
            torch.no_grad(),
            contextlib.suppress(Abandoned),
        ):
            due = [slot for slot in slots if slot.life.due]
            there: list[Slot] = []
            for slot in due:
                if slot.life is AWAITED and not self.arrived(slot):
                    self._land(there)
                    there = []
                    self._wait_for(slot)
                there.append(slot)
            self._land(there)
            move(due, SETTLE)
            for slot in due:
                slot.streams.before_look(slot.updated)
            self.let_go()

    def let_go(self) -> None:
        """Stop watching once no `.grad` awaits an average."""
        # Reversed, since a program that accesses all gradients begins with the first.
        if not any(slot.life.awaited for slot in reversed(self.slots)):
            torch_guards.release(self)
            self.end()

    def _land(self, slots: Sequence[Slot]) -> None:
        with references.unhandled():
            for slot in slots:
                if slot.life is AWAITED:  # During a wait, a signal handler may have accessed it.
                    slot.streams.before_average(slot.ends())
                    slot.bring_home()
                    move((slot,), LAND)
                    slot.updated = slot.streams.mark()

    def _land_meanwhile(self) -> bool:
        """During a wait, copy landed averages to their `.grad`, up to the first that has not landed. Return True if any
        has. These remain awaited, since nobody has asked for them yet.
        """
        landed: list[Slot] = []
        for slot in reversed(self.slots):  # mostly the order of generation
            if slot.life is not AWAITED or len(slot.watched.slots) > 1:
                continue
            if not self.landed(slot):
                break
            landed.append(slot)
        self._land(landed)
        return bool(landed)

    def flush(self, patience_s: float | None = None) -> bool:
        """Settle every awaited average, and make every pending update of these parameters."""
        whole = True
        for owner in {slot.owner for slot in self.slots if slot.life.pending}:
            whole = owner.flush(patience_s) and whole
        self.settle(self.slots)
        return whole

    def move_gradients(self) -> None:
        """Give every gradient other memory than the program may have kept."""
        self.flush()
        with references.at_work(), torch.no_grad():
            for slot in self.slots:
                slot.move()

    def abandon(self) -> bool:
        """Give up after the loss of a peer: failed modules keep their parameters and gradients as they are, and nothing
        waits for them. Return True if the program has already had an error for it.
        """
        told = self._told
        for rounds in living():
            rounds._told = True
            if rounds.failed:
                rounds._give_up()
        return told

    def _give_up(self) -> None:
        pending = [slot for slot in self.slots if slot.life.pending]
        if not pending and not any(slot.life.awaited for slot in self.slots):
            return
        model = f"the model is at step {self.iteration - 1}"
        if 0 < len(pending) < len(self.slots):
            model += f", but {len(self.slots) - len(pending)} of its {len(self.slots)} parameters at the next one"
        where = f"iteration {self.iteration} of {self.label or 'a module'}"
        to_come = (slot for slot in self.slots if slot.life.to_come and not self.arrived(slot))
        if first := next(to_come, None):
            where += f", waiting for the gradient of {first.name}"
        logger.warning("%s, in %s: %s", self._loss(), where, model)
        for owner in {slot.owner for slot in pending}:
            owner.forget([slot for slot in pending if slot.owner is owner])
        self.forget(self.slots)

    def forget(self, slots: Iterable[Slot]) -> None:
        """Expect no more averages for these gradients: they are unreachable, or a peer is gone."""
        move(slots, FORGET)
        self.let_go()

    def dropped(self) -> None:
        """Handle a module that the program has dropped, without waiting. Any parts that the program still holds work as
        before, but this object no longer keeps them alive.
        """
        self.retire()
        torch_guards.may_go(self.slots)
        self._is_dropped = True
        self.end()

    def end(self) -> None:
        """Free memory now if the module is dropped and nothing is to come: garbage collection is infrequent."""
        if self._is_dropped and not any(slot.life.to_come for slot in self.slots):
            torch_guards.unwatch(self, self.slots)
            for slot in self.slots:
                slot.let_memory_go()
            self.slots = []

    def keep_barrier(self) -> None:
        """From now on, finish every update within its step() and every average within its backward pass."""
        self._out_of_sight = True
        self.wait_in_step()

    def wait_in_step(self) -> None:
        """From now on, finish every update within its step()."""
        self._probation.for_good()
        torch_guards.note_uses(self, False)
        for owner in {slot.owner for slot in self.slots if slot.life.pending}:
            owner.flush()

    def before_compilation(self) -> None:
        """Prepare for compilation of a module of the program: nothing to do, since hooks are on parameters only."""

    def stepped(self) -> None:
        """Note that an optimizer of these parameters has stepped with some late updates."""
        for slot in self.slots:
            slot.sight = Sight.UNSEEN
        learning = self.learning
        self._learned |= learning
        self._outlasted |= learning or any(slot.life.pending for slot in self.slots)
        self._probation.stepped()
        torch_guards.note_uses(self, self._probation.watches)

    def _iterated(self) -> bool:
        """Note that the next iteration has begun. Return True if nothing of the last one was still to come."""
        waited = not self._outlasted and not any(slot.life.awaited for slot in self.slots)
        self._outlasted = False
        if waited:
            self._probation.in_vain()
            torch_guards.note_uses(self, self._probation.watches)
        return waited

    def _wait_for(self, slot: Slot) -> None:
        with LongWait(self) as wait:
            while not self.arrived(slot):
                if self.wanted_whole and self._land_meanwhile():
                    continue
                wait.goes_on(slot, time.monotonic())
                with references.waiting():
                    self.wait_activity(WAIT_LIMIT_S)


def watch_backward(within: Callable[[], bool] | None = None) -> None:
    """Notify rounds when a backward pass has returned, however the program called it. Also watch accesses by the
    program in passes before which `within` returns True.
    """
    global _installed
    if within is not None and within not in _within:
        _within.append(within)
    if _installed:
        return
    _installed = True
    autograd: Any = torch.autograd
    original = autograd._engine_run_backward

    @passed_over
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if torch._C._functorch.maybe_current_level() is not None:
            return original(*args, **kwargs)  # A pass of a transform of torch.func reaches no `.grad`.
        if thread in _running:
            with _seen_within():
                return original(*args, **kwargs)
        torch_guards.backward_begins(*args[:2])
        for tell in list(_before):
            tell(args[0])
        _running.add(thread)
        try:
            with _seen_within():
                return original(*args, **kwargs)
        finally:
            _running.discard(thread)
            for rounds in sorted(living(), key=lambda rounds: rounds.number):  # in the same order on all ranks
                rounds.backward_ends()
            torch_guards.watch_thread()

    autograd._engine_run_backward = run


def living() -> list[AwaitedRounds]:
    """Return the rounds of all living modules."""
    return [owner for owner in torch_guards.owners() if isinstance(owner, AwaitedRounds)]


def _seen_within() -> contextlib.AbstractContextManager[None]:
    return torch_guards.within_backward(any(within() for within in _within))


def before_backward(tell: Callable[[Sequence[Any]], None]) -> Callable[[], None]:
    """Pass the roots of each outermost backward pass to `tell` before it runs. Return a function to end this."""
    watch_backward()
    _before.append(tell)

    def leave() -> None:
        with contextlib.suppress(ValueError):
            _before.remove(tell)

    return leave
