"""When gradients leave and when parameters are updated: the step without its barrier.

Rule of this file: one optimizer's rounds, from gradients that appear in backward to the updates that its
own torch.optim class makes of them, as late as the next use of each parameter. BytePS is reached through
`Engine` only; who uses a parameter is guards.py's to notice.

An update runs the optimizer's own step() on a view of its parameter groups that holds only the parameters
whose averages are there, with their averages in place of `.grad`. Every optimizer of torch.optim but LBFGS
updates parameter by parameter, so the bits are those of one whole step. The groups' hyper-parameters are
those of the moment step() was called, since a learning rate scheduler runs right after it.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import unserializable_hook

from prophet.core.cut import Cut
from prophet_byteps.cutting import CutControl
from prophet_byteps.torch import guards as torch_guards
from prophet_byteps.torch import references
from prophet_byteps.torch.arena import Arena, Slot
from prophet_byteps.torch.keys import Engine, warn_once
from prophet_byteps.torch.streams import Event, Streams, streams_of

PROBATION_STEPS = 2
"""Steps that keep the barrier, while gradients show how the program reaches each parameter."""
WAIT_LIMIT_S = 0.002
"""Longest sleep between two looks at a handle: bounds the cost of a wake-up that was missed."""
COMPLAIN_S = 60.0
LOOK_AT = 16
"""Parameters that are looked at between two sleeps, whether they can be updated meanwhile. Blocks are many."""


class Updates:
    """One optimizer: its gradients' rounds, and the updates that are still to come.

    `named` are the parameters that BytePS averages, in forward order, and `unnamed` those it would have to if they had
    a name; `passes` backward passes make a gradient. `user_class` is the torch.optim class that `optimizer` extends.
    `number`: how many optimizers the program wrapped before. `stepping`: the optimizer itself is at work.
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
    ) -> None:
        self.should_synchronize = True
        self.passes = passes
        self.stepping = False
        self._optimizer = optimizer
        self._user_class = user_class
        step: Any = user_class.step
        self._step_without_hooks = step.__wrapped__ if getattr(step, "hooked", False) else step
        self._engine = engine
        self._fusion = fusion
        self._unnamed = unnamed
        self._lock = threading.RLock()
        self._slots = {id(param): Slot(self, name, param, n, passes) for n, (name, param) in enumerate(named)}
        self._order = list(self._slots.values())
        self.number = engine.announce(self.describe())
        self._control: CutControl | None = None
        self._arena: Arena | None = None
        self._streams: dict[torch.device, Streams] = {}
        self._planned = False
        self._groups: list[dict[str, Any]] = []
        self._staged = 0
        self._pending = 0
        self._look = 0
        self._synchronized = False
        self._stepped = False
        self._probation = PROBATION_STEPS
        torch_guards.watch(self, self._order)
        if torch_guards.after_compilation():
            self.keep_barrier()
        for slot in self._order:
            param: Any = slot.param
            slot.watched.memory.note(param)
            param.register_hook(self._hook(slot, self._gradient_comes))
            param.register_post_accumulate_grad_hook(self._hook(slot, self._gradient_ready))

    # What the optimizer's methods call.

    def step(self, closure: Callable[[], Any] | None) -> Any:
        """Takes this round's gradients for an update; waits only for what cannot be updated later."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.should_synchronize and (closure is not None or self._needs_whole_step()):
            self.synchronize()
        self.flush()
        self._settle_others()
        self._stepped = True
        if self._synchronized or not self.should_synchronize:
            self._synchronized = False
            with self._stepping():
                self._user_class.step(self._optimizer)
            return loss
        self._push_missing()
        local = self._freeze_groups()
        for streams in self._streams.values():
            streams.home = streams.current()
        self._next_round()
        for slot in self._order:
            slot.pending = True
        self._pending = len(self._order)
        # A graph that holds parameters from before this step is void from now on, as it would be after a whole step.
        _increment_versions([slot.param for slot in self._order if slot.group is not None])
        exposed = torch_guards.keep(self, self._order)
        if local:
            with references.outside_of_the_program({params[0].device.type for params in local.values()}):
                self._run_optimizer(local)
        self.finish([slot for slot in self._order if slot.eager or self._probation or slot in exposed])
        if self._probation > 0:
            self._probation -= 1
            if self._probation == 0:
                torch_guards.learned(self)
        return None

    def synchronize(self) -> None:
        """Waits for everything: afterwards each parameter's `.grad` is its averaged gradient.

        Right after step() that takes nothing but the averages that are still under way: a round that this worker alone
        began would end up in the others' next averages.
        """
        if self._synchronized:
            return
        self.flush()
        if self._stepped and not self._anything_since_step():
            return
        self._push_missing()
        with self._lock, torch.no_grad():
            for slot in self._order:
                self._wait_for([slot])
                slot.streams.before_average()
                if slot.param.grad is not None:
                    slot.param.grad.copy_(slot.view)
                elif slot.param.requires_grad:
                    slot.param.grad = slot.view.clone()
                slot.see(slot.param.grad)
                slot.updated = slot.streams.mark()
            self._next_round()
        self._synchronized = True

    def flush(self, patience_s: float | None = None) -> bool:
        """Finishes every pending update; False if some are still to come after `patience_s` without any progress."""
        if self._pending == 0:
            return True
        return self.finish(self._order, patience_s)

    def finish(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Waits for these gradients and updates their parameters; False if there was no progress for `patience_s`.

        What else is back and comes next in forward order is updated in the same call of the optimizer.
        """
        with self._lock, references.blind():
            # Each once: a module may have a parameter twice, and its parameters in another order.
            due = sorted({slot for slot in slots if slot.pending}, key=lambda slot: slot.place)
            if due:
                if not self._wait_for(due, patience_s):
                    return False
                self._update(due + self._back_after(due[-1]))
        if self._pending == 0:
            torch_guards.release(self)
        return True

    def follow_update(self, slot: Slot) -> None:
        """The stream that is current here goes on after the last update of the parameter."""
        slot.streams.follow(slot.updated)

    def keep_barrier(self) -> None:
        """From now on no update outlasts step()."""
        self._probation = -1
        torch_guards.learned(self)
        self.flush()

    def set_passes(self, passes: int) -> None:
        self.passes = passes
        for slot in self._order:
            slot.left = passes

    def restart(self) -> None:
        """Forgets rounds: after a suspend all workers, of which some may be new, begin with the same keys."""
        with self._lock:
            self._planned = False
            self._synchronized = False
            self._staged = 0
            self._engine.restart()
            if self._arena is not None:
                self._arena.restart(self.passes)

    def describe(self) -> str:
        """What must be alike on all workers before the program has used anything, in a few words."""
        names = hashlib.sha256("\n".join(slot.name for slot in self._slots.values()).encode()).hexdigest()
        return f"without a barrier, {len(self._slots)} parameters, names {names[:8]}"

    # Gradients on their way out.

    @staticmethod
    def _hook(slot: Slot, method: Callable[[Slot], None]) -> Callable[[torch.Tensor], None]:
        """The garbage collector does not see a tensor's hooks, so they must not keep the optimizer alive."""
        reference, name = weakref.ref(slot), method.__name__

        def hook(_tensor: torch.Tensor) -> None:
            slot = reference()
            if slot is not None:
                getattr(slot.owner, name)(slot)

        # A pickled parameter goes without it, and without a warning.
        unserializable_hook(hook)  # type: ignore[no-untyped-call]
        return hook

    def _gradient_comes(self, slot: Slot) -> None:
        """A gradient is about to be added to `.grad`, in which the average of the last round belongs first.

        Its graph was made before step(), or by a use that nobody noticed.
        """
        if slot.pending:
            slot.late = True
            self.finish([slot])

    def _gradient_ready(self, slot: Slot) -> None:
        with self._lock, references.blind():
            self._plan()
            if slot.staged:
                raise AssertionError(
                    "Gradients were computed more than backward_passes_per_step times before call to step(). "
                    "Increase backward_passes_per_step to accumulate gradients locally."
                )
            if self._probation > 0 and not slot.touched:
                slot.eager = True
            if slot.late and not slot.touched:
                warn_once(
                    f"{slot.name} was used before its update had arrived, by a reference that the program kept; "
                    "from now on step() waits for all updates"
                )
                self.keep_barrier()
            self._synchronized = False
            slot.left -= 1
            if slot.left == 0:
                self._stage(slot)

    def _plan(self) -> None:
        """Makes the arena and its first blocks, before the first gradient leaves, as all other workers do.

        Not sooner, because the program may move the model until then. Every worker comes here at the same point of the
        same program, so BytePS numbers the tensors alike on all of them.
        """
        if self._planned:
            return
        if self._unnamed:
            raise ValueError(
                f"{len(self._unnamed)} parameters of {self._user_class.__name__} are not among the named_parameters "
                f"that DistributedOptimizer was given (the first has shape {list(self._unnamed[0].shape)}); "
                "BytePS sends gradients by name"
            )
        if self._arena is None:
            self._arena = Arena(self._order, self._fusion, self._engine, self.number, self._streams_of)
        arena = self._arena
        # Blocks follow from sizes and from which gradients are of one kind; devices may be called otherwise elsewhere.
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(arena.kinds))}
        layout = [
            (slot.name, str(slot.param.dtype), size, None if kind is None else numbers[kind])
            for slot, size, kind in zip(self._order, arena.sizes, arena.kinds, strict=True)
        ]
        digest = hashlib.sha256(repr(layout).encode()).hexdigest()
        self._engine.agree(
            f"layout of optimizer {self.number}",
            f"{len(layout)} gradients of {sum(arena.sizes)} bytes, layout {digest[:8]}",
        )
        if self._control is None:
            self._control = self._engine.cuts(self.number)
        else:
            self._control.restart(self._engine.bps.rank(), self._engine.bps.size())
        self._control.declare()
        board = self._engine.board
        if not arena.begin(self._control.first(arena.sizes, arena.first_id), may_change=board.fixed is None):
            self._keep_cut()
        self._planned = True

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = streams_of(device)
        return self._streams[device]

    def _stage(self, slot: Slot) -> None:
        """Sends one gradient of this round; before the first one, blocks may be cut anew."""
        assert self._arena is not None and self._control is not None
        if self._staged == 0:
            cut = self._control.round_begins()
            if cut is not None:
                self._recut(self._arena, cut)
        self._arena.stage(slot)
        self._staged += 1
        if self._staged == len(self._order):
            self._control.round_ends()

    def _recut(self, arena: Arena, cut: Cut) -> None:
        """Finishes what is on its way, and goes on in other blocks."""
        for slot in self._order:
            # As for a gradient that comes before its update: nothing that is watched has used the parameter so far.
            slot.late |= slot.pending
        self.flush()
        if not arena.recut(cut):
            warn_once("blocks stay as they are: this job has had so many sizes of blocks that BytePS's names run out")
            self._keep_cut()

    def _keep_cut(self) -> None:
        """Another cut holds than was agreed on; on all workers, which count alike."""
        assert self._arena is not None and self._arena.cut is not None
        self._engine.board.taken_up(self.number, self._arena.cut)

    def _next_round(self) -> None:
        assert self._arena is not None
        self._staged = 0
        self._arena.next_round(self.passes)

    def _push_missing(self) -> None:
        """Sends what this round still lacks: every worker must push every block in every round."""
        with self._lock, references.blind():
            self._plan()
            if self._staged < len(self._order):
                for slot in self._order:
                    if not slot.staged:
                        self._stage(slot)

    # Updates on their way in.

    def _needs_whole_step(self) -> bool:
        """True where something looks at the step as a whole: hooks around it, a scaler that may skip it."""
        optimizer = self._optimizer
        return bool(
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or torch_optimizer._global_optimizer_pre_hooks
            or torch_optimizer._global_optimizer_post_hooks
            or getattr(optimizer, "found_inf", None) is not None
            or getattr(optimizer, "grad_scale", None) is not None
        )

    def _settle_others(self) -> None:
        """Another optimizer's step on the same parameters, which came before, takes place before."""
        torch_guards.settle((param for _, param in self._grouped()), self)

    def _grouped(self) -> Iterator[tuple[int, torch.Tensor]]:
        """(number of its group, parameter) of all that the optimizer updates."""
        for number, group in enumerate(self._optimizer.param_groups):
            params = group["params"]
            for param in params.unwatched() if isinstance(params, torch_guards.GroupParameters) else params:
                yield number, param

    def _anything_since_step(self) -> bool:
        """Whether a gradient came, or the program cleared or wrote one, since step()."""
        with references.blind():
            return any(slot.staged or slot.left != self.passes or not slot.grad_as_seen() for slot in self._order)

    def _freeze_groups(self) -> dict[int, list[torch.Tensor]]:
        """Keeps the hyper-parameters of this moment, and returns, by group, parameters that are not averaged.

        Those were frozen when the optimizer was wrapped; BytePS, too, updates them by the local gradient.
        """
        self._groups = []
        local: dict[int, list[torch.Tensor]] = {}
        for slot in self._order:
            slot.group = None
        with references.blind():
            for group in self._optimizer.param_groups:
                self._groups.append(
                    {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items()}
                )
            for position, (number, param) in enumerate(self._grouped()):
                own = self._slots.get(id(param))
                if own is None:
                    if param.grad is not None:
                        local.setdefault(number, []).append(param)
                elif param.requires_grad or param.grad is not None:
                    own.group, own.position = number, position
                    if own.seen is not None and not own.grad_unchanged():
                        warn_once(
                            "gradients were changed between backward() and step(), after they had left; "
                            "call optimizer.synchronize() before changing them"
                        )
        return local

    def _wait_for(self, slots: Sequence[Slot], patience_s: float | None = None) -> bool:
        """Waits until the averages of all `slots` have arrived, and meanwhile updates what else arrives."""
        assert self._arena is not None
        since: float | None = None
        moved: object = None
        complain_at = 0.0
        for slot in slots:
            while not self._arena.arrived(slot):
                early = self._back_meanwhile(slots)
                if early:
                    self._update(early)
                    continue
                now = time.monotonic()
                if since is None:
                    since, moved, complain_at = now, self._engine.progress(), now + COMPLAIN_S
                if patience_s is not None and now - since > patience_s:
                    if self._engine.progress() == moved:
                        return False
                    since, moved = now, self._engine.progress()
                if now > complain_at:
                    warn_once(f"still waiting for the gradient of {slot.name} after {COMPLAIN_S:.0f} s")
                self._engine.wait_activity(WAIT_LIMIT_S)
        return True

    def _back_meanwhile(self, awaited: Sequence[Slot]) -> list[Slot]:
        """Of the LOOK_AT parameters that are next to be looked at, those that can be updated and are not awaited."""
        assert self._arena is not None
        if self._pending <= len(awaited):
            return []
        back = []
        for _ in range(min(LOOK_AT, len(self._order))):
            slot = self._order[self._look]
            self._look = (self._look + 1) % len(self._order)
            if slot.pending and slot not in awaited and self._arena.arrived(slot):
                back.append(slot)
        return back

    def _back_after(self, last: Slot) -> list[Slot]:
        """The parameters after `last` in forward order that can be updated, up to the first that cannot."""
        assert self._arena is not None
        back = []
        for place in range(last.place + 1, len(self._order)):
            slot = self._order[place]
            if not (slot.pending and self._arena.arrived(slot)):
                break
            back.append(slot)
        return back

    def _update(self, slots: Sequence[Slot]) -> None:
        """Updates parameters whose averages have arrived, all in one call of the optimizer."""
        used = {slot.streams: None for slot in slots}
        marks: dict[Streams, Event] = {}
        with contextlib.ExitStack() as modes:
            for streams in used:
                modes.enter_context(streams.on(streams.home))
                streams.before_average()
            for slot in slots:
                if slot.updated is not None:
                    slot.streams.follow(slot.updated)
            modes.enter_context(references.outside_of_the_program({slot.param.device.type for slot in slots}))
            self._update_here(slots)
            for streams in used:
                marks[streams] = streams.mark()
        for streams, mark in marks.items():
            streams.follow(mark)
        for slot in slots:
            slot.updated = marks[slot.streams]
            slot.pending = False
        self._pending -= len(slots)

    def _update_here(self, slots: Sequence[Slot]) -> None:
        # In the optimizer's own order, in which its state keeps what the first update makes.
        due = sorted((slot for slot in slots if slot.group is not None), key=lambda slot: slot.position)
        work: dict[int, list[torch.Tensor]] = {}
        for slot in due:
            assert slot.group is not None
            work.setdefault(slot.group, []).append(slot.param)
        before = [(slot, slot.param.grad, slot.grad_unchanged()) for slot in due]
        try:
            for slot in due:
                slot.param.grad = slot.view
            self._run_optimizer(work)
        finally:
            for slot, grad, unchanged in before:
                slot.param.grad = grad
                if grad is not None and unchanged:
                    slot.streams.keep(grad, slot.streams.home)
                    sharing = [other for other in slot.watched.slots if other.grad_unchanged()]
                    with torch.no_grad():
                        grad.copy_(slot.view)
                    for other in sharing:
                        other.see(grad)

    def _run_optimizer(self, work: dict[int, list[torch.Tensor]]) -> None:
        """The user's own step on these parameters, by number of their group, and on nothing else."""
        if not work:
            return
        optimizer = self._optimizer
        groups = optimizer.param_groups
        optimizer.param_groups = [{**self._groups[number], "params": params} for number, params in work.items()]
        try:
            with self._stepping():
                self._step_without_hooks(optimizer)
        finally:
            optimizer.param_groups = groups

    @contextlib.contextmanager
    def _stepping(self) -> Iterator[None]:
        """Within it the optimizer itself looks at its state and its groups, and not the program."""
        self.stepping, before = True, self.stepping
        try:
            with references.blind():
                yield
        finally:
            self.stepping = before


def _increment_versions(params: list[torch.Tensor]) -> None:
    """What a write does to a tensor's version, which autograd compares."""
    try:
        torch.autograd.graph.increment_version(params)
    except (AttributeError, TypeError):  # Before torch 2.6 it took one tensor at a time.
        for param in params:
            torch.autograd.graph.increment_version(param)
