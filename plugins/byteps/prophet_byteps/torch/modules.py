"""Rounds of byteps.torch.parallel.DistributedDataParallel: BytePS's module wrapper, without its wait.

Rule of this file: when a module's gradients leave, and what its synchronize() does. keyed_rounds.py has rounds of
blocks; prophet_scheduler/frontends/torch/awaited.py knows when averages are in `.grad`.

BytePS's wrapper pushes each gradient when it is ready, and waits for all averages at the last one of a backward pass.
Here backward returns, `.grad` awaits its average, and the program's own step() passes the average to a late update.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from prophet_byteps.torch.keyed_rounds import SIGHT, KeyedRounds, KeyedWire
from prophet_byteps.torch.keys import Engine, leave_zeros
from prophet_scheduler.frontends.torch import references, steps
from prophet_scheduler.frontends.torch.awaited import AwaitedRounds, watch_backward
from prophet_scheduler.frontends.torch.life import PROMISE
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.updates import WAIT_LIMIT_S, unseen_use


def _makes_gradients() -> bool:
    return True


class KeyedModuleRounds(KeyedWire, AwaitedRounds):
    """Rounds of one module. `named` are the parameters that BytePS averages, in forward order; `half` is as an Arena's.

    `syncs()` returns True if a backward pass is averaged, False within no_sync().
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.Tensor]],
        engine: Engine,
        fusion: bool,
        half: torch.dtype | None,
        syncs: Callable[[], bool],
    ) -> None:
        super().__init__(named, engine.take_number())
        self._syncs = syncs
        self._sent_any = False
        what = "a module without a barrier"
        self._keyed = KeyedRounds(self.slots, fusion, engine, self.number, what, half, self._clear)
        watch_backward(_makes_gradients)
        self.watch()

    def synchronize(self) -> None:
        """End the open round: the gradients that it still lacks had no part in the loss. If no round is open, average
        all gradients as they are: the program may have made them within no_sync(), or changed them.
        """
        with self._lock, references.blind(), torch.no_grad():
            self._keyed.plan()
            missing = [slot for slot in self.slots if not slot.life.staged]
            for slot in missing:
                self._bring_home(slot)
            for slot in missing:
                self._stage(slot)

    @property
    def tracing(self) -> bool:
        return self._keyed.tracing

    def keep_barrier(self) -> None:
        self._keyed.give_up_trace(SIGHT)
        super().keep_barrier()

    def restart(self) -> None:
        """Forget rounds after a suspend, when nothing is in flight."""
        with self._lock:
            self._keyed.restart()

    def flush(self, patience_s: float | None = None) -> bool:
        """As for all awaited rounds. Return False also if an average does not come within `patience_s`."""
        since, moved = time.monotonic(), self.progress()
        for slot in self.slots if patience_s is not None else ():
            while slot.life.to_come and not self.arrived(slot):
                now, progress = time.monotonic(), self.progress()
                if progress != moved:
                    since, moved = now, progress
                elif patience_s is not None and now - since > patience_s:
                    return False
                self.wait_activity(WAIT_LIMIT_S)
        return super().flush(patience_s)

    def expect_nothing(self) -> None:
        """Make no pending update, and leave each `.grad` as it is: averages never come."""
        for owner in {slot.owner for slot in self.slots if slot.life.pending}:
            owner.forget([slot for slot in self.slots if slot.owner is owner])
        self.forget(self.slots)

    def _gradient_ready(self, slot: Slot, *_gradients: Any) -> None:
        with self._lock:  # This runs in Prophet's hook, so nothing here counts as a use.
            if unseen_use(slot, on_probation=self._probation.watches):
                self.keep_barrier()
            if not self._syncs():
                return
            self._keyed.plan()
            if slot.life.staged:
                raise AssertionError(
                    f"{slot.name} has a second gradient before all others had their first. Call synchronize() after a "
                    "backward pass that leaves parameters out, and use no_sync() around passes that are not averaged"
                )
            self._stage(slot)

    def _stage(self, slot: Slot) -> None:
        if self._keyed.staged == 0 and self._sent_any:
            self._keyed.iterated(waited=self._iterated())
        self._sent_any = True
        while not self.arrived(slot):  # the last average, if nobody asked for it
            self.wait_activity(WAIT_LIMIT_S)
        self._left(slot, self._keyed.stage(slot, PROMISE))
        if self._keyed.whole:
            self._keyed.next_round()
            self.backward_ends()

    def _clear(self) -> None:
        """Bring home all averages in flight, and wait even for those that nobody asks for."""
        self.flush()
        for slot in self.slots:
            while not self.arrived(slot):
                self.wait_activity(WAIT_LIMIT_S)


_rounds: weakref.WeakKeyDictionary[Any, KeyedModuleRounds] = weakref.WeakKeyDictionary()
"""Rounds of each BytePS wrapper."""


def average(ddp: Any, engine: Engine, fusion: bool, half: torch.dtype | None) -> None:
    """Average the gradients of this wrapper's module from now on. Called when BytePS would register its hooks."""
    steps.install()
    reference = weakref.ref(ddp)

    def syncs() -> bool:
        alive = reference()
        return alive is None or bool(alive._require_backward_grad_sync)

    named = [(name, param) for name, param in ddp.module.named_parameters() if param.requires_grad]
    leave_zeros(param for _, param in named)
    _rounds[ddp] = rounds = KeyedModuleRounds(named, engine, fusion, half, syncs)
    weakref.finalize(ddp, rounds.dropped).atexit = False


def rounds_of(ddp: Any) -> KeyedModuleRounds | None:
    """Return the rounds of this wrapper; None if BytePS averages its gradients."""
    return _rounds.get(ddp)
