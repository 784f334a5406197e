"""BytePS's rounds without the barrier: one optimizer's gradients, from backward to the updates that are made of them.

Rule of this file: when gradients leave and what step() and synchronize() do. Updates as such are
prophet/frontends/torch/updates.py's, blocks and names keyed_arena.py's; BytePS is reached through `Engine` only.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from prophet.core.cut import Cut
from prophet.frontends.notices import warn_once
from prophet.frontends.torch import guards as torch_guards
from prophet.frontends.torch import references
from prophet.frontends.torch.arena import Slot
from prophet.frontends.torch.streams import Streams, streams_of
from prophet.frontends.torch.updates import PROBATION_STEPS, Updates, unseen_use
from prophet.watch import training
from prophet_byteps.cutting import CutControl
from prophet_byteps.torch.keyed_arena import KeyedArena
from prophet_byteps.torch.keys import Engine


class OptimizerRounds(Updates):
    """One optimizer: its gradients' rounds, and the updates that are still to come.

    `named` are the parameters that BytePS averages, in forward order, and `unnamed` those it would have to if they had
    a name; `passes` backward passes make a gradient. `user_class` is the torch.optim class that `optimizer` extends.
    `number`: how many optimizers the program wrapped before.
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
        super().__init__(optimizer, user_class)
        self._wire = self
        self.should_synchronize = True
        self.passes = passes
        self._engine = engine
        self._fusion = fusion
        self._unnamed = unnamed
        self._slots = {id(param): Slot(self, name, param, n, passes) for n, (name, param) in enumerate(named)}
        self._order = list(self._slots.values())
        for slot in self._order:
            slot.owner = self
        self.number = engine.announce(self.describe())
        self._control: CutControl | None = None
        self._arena: KeyedArena | None = None
        self._streams: dict[torch.device, Streams] = {}
        self._planned = False
        self._staged = 0
        self._synchronized = False
        self._stepped = False
        self._probation = PROBATION_STEPS
        torch_guards.watch(self, self._order)
        if torch_guards.after_compilation():
            self.keep_barrier()
        for slot in self._order:
            param: Any = slot.param
            slot.watched.memory.note(param)
            param.register_hook(slot.hook("_gradient_comes"))
            param.register_post_accumulate_grad_hook(slot.hook("_gradient_ready"))

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
        local = self._take_groups()
        self._next_round()
        self._defer(self._order, local, barrier=self._probation != 0)
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
            if unseen_use(slot, on_probation=self._probation > 0):
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
            self._arena = KeyedArena(self._order, self._fusion, self._engine, self.number, self._streams_of)
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
            assert arena.cut is not None
            # On all workers, which count alike.
            self._control.begins_otherwise(arena.cut, "it takes more names than a job declares in BytePS")
        self._planned = True

    def _streams_of(self, device: torch.device) -> Streams:
        if device not in self._streams:
            self._streams[device] = streams_of(device)
        return self._streams[device]

    def _stage(self, slot: Slot) -> None:
        """Sends one gradient of this round; before the first one, blocks may be cut anew."""
        assert self._arena is not None and self._control is not None
        if self._staged == 0:
            cut = self._control.round_begins(self._arena.why_not)
            if cut is not None:
                self._recut(self._arena, cut)
        self._arena.stage(slot)
        self._staged += 1
        if self._staged == len(self._order):
            training.iteration_ended(self.number, time.monotonic())
            self._control.round_ends()

    def _recut(self, arena: KeyedArena, cut: Cut) -> None:
        """Finishes what is on its way, and goes on in other blocks."""
        for slot in self._order:
            # As for a gradient that comes before its update: nothing that is watched has used the parameter so far.
            slot.late |= slot.pending
        self.flush()
        if not arena.recut(cut):
            raise RuntimeError("a cut was agreed on for which the names do not suffice")

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

    # The wire, for updates.

    def arrived(self, slot: Slot) -> bool:
        assert self._arena is not None
        return self._arena.arrived(slot)

    def landed(self, slot: Slot) -> bool:
        return self.arrived(slot)

    def wait_activity(self, limit_s: float) -> None:
        self._engine.wait_activity(limit_s)

    def progress(self) -> object:
        return self._engine.progress()

    def _anything_since_step(self) -> bool:
        """Whether a gradient came, or the program cleared or wrote one, since step()."""
        with references.blind():
            return any(slot.staged or slot.left != self.passes or not slot.grad_as_seen() for slot in self._order)

    def _take_groups(self) -> dict[int, list[torch.Tensor]]:
        """Keeps the hyper-parameters of this moment, and returns, by group, parameters that are not averaged.

        Those were frozen when the optimizer was wrapped; BytePS, too, updates them by the local gradient.
        """
        local: dict[int, list[torch.Tensor]] = {}
        for slot in self._order:
            slot.group = None
        with references.blind():
            for number, position, param in self._freeze_groups():
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
