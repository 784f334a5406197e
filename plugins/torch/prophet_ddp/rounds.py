"""The gradients of one DistributedDataParallel: rounds that end where torch's reducer would end them, without a wait.

Rule of this file: when gradients are sent. layout.py has their blocks and the sequence in force.
prophet_scheduler/frontends/torch/awaited.py decides when averages are in `.grad`; reducer.py has the interface that
DistributedDataParallel needs.

A round is one reduction: it lasts from the first gradient after a synchronised forward pass until all gradients of the
module are generated, which may take several backward passes. torch's reducer then waits for all averages; here
backward returns. The average is torch's: a gradient is multiplied by 1 / ranks before it is sent, or scaled as one of
torch's hooks does (comm_hooks.py), and the sum comes back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from prophet_ddp import texts
from prophet_ddp.arena import SparseGradients
from prophet_ddp.control import Decision
from prophet_ddp.dividing import MOST_EXACT
from prophet_ddp.issuer import JointOperation
from prophet_ddp.layout import Channel, ModuleLayout, RoundTerms
from prophet_ddp.progress import ModulePace, Uses, is_cut_off
from prophet_ddp.records import ModuleRecord
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.aliases import is_held
from prophet_scheduler.frontends.torch.awaited import WAIT_LIMIT_S, AwaitedRounds
from prophet_scheduler.frontends.torch.life import PROMISE, STAGE, Sight
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.updates import Abandoned, unseen_use
from prophet_scheduler.watch import training

if TYPE_CHECKING:
    from prophet_ddp.assembly import OnProcessors
    from prophet_ddp.comm_hooks import Buckets, CommHook
    from prophet_ddp.ddp_logger import DdpLogger, IterationTimes
    from prophet_ddp.events import EventLog
    from prophet_ddp.nccl import OnGpu
    from prophet_ddp.turns import Turns
    from prophet_scheduler.frontends.torch.trace import ForwardTrace


class NoLog:
    """Logger of a module without one."""

    times: IterationTimes | None = None

    def set_error_and_log(self, error: str, /) -> None:
        """Ignore the error."""

    def copied_back(self) -> Sequence[int]:
        return ()


class ModuleRounds(AwaitedRounds):
    """Rounds of one module. `named` has the averaged parameters in the order of registration; `number` is the module's
    in this process.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.Tensor]],
        number: int,
        channel: Channel,
        terms: RoundTerms,
        hardware: OnProcessors | OnGpu,
    ) -> None:
        super().__init__(named, number)
        self.channel = channel
        self.terms = terms
        self.record = ModuleRecord()
        self.layout = ModuleLayout(channel, terms, hardware, self.record)
        self.trace: ForwardTrace | None = None
        """Trace of forward passes, while it is recorded; else None."""
        self.module: Callable[[], nn.Module | None] = lambda: None
        """Function that returns the wrapped module; None once the module is gone."""
        self.logger: DdpLogger | NoLog = NoLog()
        self.sparse: SparseGradients | None = None
        """Sparse gradients; None if there are none."""
        self.turns: Turns | None = None
        """Turns of torch's reducer; None if it may have none."""
        self.pace = ModulePace()
        self.uses = Uses(tuple(self.slots), terms.uses_vary, terms.counted)
        self._asked = False
        """True if the program has asked for norms of averages in this iteration."""
        self._unscaled: list[Slot] = []
        """Slots of the open round whose `.grad` would lie in torch's bucket, where it would be scaled already."""
        self.watch()

    @property
    def tracing(self) -> bool:
        return self.trace is not None

    @property
    def wanted_whole(self) -> bool:
        return self.record.waits.holds

    @property
    def ranks(self) -> int:
        return self.channel.ranks

    @property
    def log(self) -> EventLog:
        return self.channel.log

    @property
    def registered(self) -> Sequence[Slot]:
        """Slots in the order in which they were `named`."""
        return self.uses.slots

    @property
    def resting(self) -> bool:
        """True during a turn of torch's reducer: Prophet gathers nothing."""
        return self.turns is not None and self.turns.late_reducer is not None

    @property
    def plain(self) -> bool:
        """True if every round averages all gradients. Alike on all ranks."""
        return not self.uses.vary

    @property
    def as_came(self) -> Sequence[Slot]:
        """Slots in the order of generation; in that of registration before they are arranged."""
        return self.slots[::-1] if self.layout.arranged else self.registered

    @property
    def used_by(self) -> torch.Tensor | None:
        """Number of ranks that used each parameter in the last round, int32 [parameters]; None if all always do."""
        if self.uses.by_known is None:
            return None if self.plain else torch.zeros(len(self.slots), dtype=torch.int32, device="cpu")
        self._wait(self.uses.by_known)
        return self.uses.by

    def iterated(self, way: str, took_s: float, cut: Cut | None = None) -> None:
        """Record the end of an iteration averaged this way. `cut` stands for torch's buckets; None for our blocks.

        Its time means nothing if a step() waited only to learn how the program reaches its parameters.
        """
        decision = self.layout.decision
        own = decision.cut if decision is not None and not self._learned else None
        self._learned = False
        self.pace.iterated(cut or own, way, took_s)

    @property
    def divisible(self) -> bool:
        """True if rounds may have two phases. Alike on all ranks."""
        return self.plain and self.layout.divisible

    def keep_counts(self) -> None:
        """Expect a static graph: its first backward pass shows how many gradients each parameter gets in any pass."""
        self.uses.vary = self.uses.counted = True
        self.layout.first_came = None

    def average_by(self, hook: CommHook, buckets: Buckets | None = None) -> str:
        """Call `ModuleLayout.average_by`. Torch's reducer has no turns where buckets are averaged."""
        why = self.layout.average_by(hook, buckets, self._wait)
        if self.layout.buckets is not None:
            self.turns = None
        return why

    def lends_gradients(self) -> bool:
        """Return True if any rank's program has parts of gradients, whose memory must stay: then torch's reducer gets a
        turn without an end instead of the module. All ranks call this after the same round.
        """
        if not self.terms.in_place:
            return False
        last = [slot.seen_last() for slot in self.slots]
        lent = torch.tensor([any(is_held(each) for each in last if each is not None)], dtype=torch.int32, device="cpu")
        issuer = self.channel.issuer
        self._wait(issuer.put(lambda: issuer.groups.all_reduce(lent)))
        return bool(lent.item())

    def resume(self) -> None:
        """Continue after a turn of torch's reducer, between two rounds. Uses of slots in the meantime do not count."""
        training.paused()
        self.pace.pause()
        for slot in self.slots:
            slot.sight = Sight.UNSEEN

    def remove(self) -> None:
        """Give the module back to torch's reducer: flush, gather no more, and free the memory."""
        if self.trace is not None:
            self.trace.remove("it went back to torch's reducer")
        self.flush()
        self.retire()
        for comes, _ in self.hooks:
            comes.remove()
        torch_guards.release(self)
        self._is_dropped = True
        self.end()

    def retire(self) -> None:
        if self.trace is not None:
            self.trace.abandon()
        super().retire()
        self.channel.issuer.gone = True

    def end(self) -> None:
        super().end()
        if not self.slots:  # Break cycles, so that memory is freed at once, without a garbage collection.
            self.layout.free()
            self.layout.first_came = self.layout.buckets = self.turns = None
            self.logger = NoLog()
            self.uses = Uses((), self.uses.vary, self.uses.counted)

    # Calls of the module's forward.

    def forward_begins(self) -> None:
        """Prepare for a synchronised forward pass. Raises RuntimeError if the last round never ended."""
        self.check_finished()
        if self.pace.new_iteration():
            self.record.waits.iteration(self._iterated())
            self.record.asks.iteration(self._asked)
            self._asked = False
        if self.trace is not None:
            self.trace.begins()
            if self.trace.done:
                self.trace = None

    def check_finished(self) -> None:
        """Raise RuntimeError, with torch's words, if the last round never ended."""
        if self.pace.open:
            missing = {place: slot.name for place, slot in enumerate(self.registered) if not slot.life.staged}
            rank, static = self.channel.control.rank, self.uses.counted
            raise self._error(texts.unfinished(rank, missing, static=static, finds_unused=self.uses.vary))

    def _error(self, text: str) -> RuntimeError:
        """Record an error with torch's words in the logger, as torch does, and return it."""
        self.logger.set_error_and_log(text)
        return RuntimeError(text)

    def forward_ends(self, outputs: Sequence[torch.Tensor]) -> None:
        """Record the end of a synchronised forward pass: the next backward pass makes gradients to average."""
        if self.trace is not None:
            self.trace.ends()
        self.log.forward_ended(time.monotonic())
        self._forward_thread = threading.get_ident()
        for slot in self.uses.forward_ends(outputs):  # They get no gradient, but their `.grad` is sent.
            self._bring_home(slot)
            if self.terms.in_place and is_cut_off(slot, self.module()):
                warn_once(
                    f"{slot.title} was replaced or moved to another type or device after DistributedDataParallel was "
                    "made: its gradients count as zeros, where torch may find them in its bucket"
                )

    def _gathered(self) -> None:
        if self.uses.without and not self.pace.staged:
            self._settle_unused()
        self._scale_unfinished()

    def _returned(self) -> None:
        if self.turns is not None:
            self.turns.backward_ends()

    def _scale_unfinished(self) -> None:
        """Scale each `.grad` of a round that this backward pass leaves open, where torch has done so in its bucket."""
        scale = self.layout.arena.scale if self.layout.arena is not None else None
        with references.blind(), torch.no_grad():
            for slot in self._unscaled:
                grad = slot.param.grad
                if scale is not None and grad is not None and not grad.requires_grad:
                    slot.see(grad.mul_(scale))
        self._unscaled.clear()

    def in_torch_order(self, slots: set[Slot]) -> list[Slot]:
        if not slots:
            return []
        as_came, registered = self.layout.arranged, self.registered
        order = self.as_came if as_came else [registered[place] for place in self.logger.copied_back()]
        return [slot for slot in order if slot in slots]

    @property
    def cut_off(self) -> bool:
        """True if gradients no longer arrive here. One parameter shows it: if only some are cut off, the next forward
        pass is refused.
        """
        return bool(self.slots) and is_cut_off(self.slots[0], self.module())

    def _nothing_came(self) -> None:
        if self.turns is not None and self.turns.unfinished_here:
            self._scale_unfinished()
        if self.uses.expected and not self.pace.open and self.cut_off:
            warn_once(
                f"{self.slots[0].name} and others were replaced or moved to another type or device after "
                "DistributedDataParallel was made: their gradients are not averaged, with Prophet or without"
            )

    def static_backward_ends(self) -> None:
        """Learn the counts from the first backward pass of a static graph; every later pass has the same."""
        with self._lock, references.blind():
            if not self.uses.expected:
                raise self._error(texts.FIRST_UNSYNCED)
            self.uses.know_counts()
            self._stage_all(self.slots)

    # Outgoing gradients.

    def _gradient_comes(self, slot: Slot, *_gradient: Any) -> None:
        if not self.resting:
            super()._gradient_comes(slot)
        if self.terms.in_place:
            slot.note_pass()

    def _gradient_ready(self, slot: Slot, *gradients: Any) -> None:
        if self.turns is not None and self.resting:
            if self.turns.gradient_comes(slot):
                self._keep_place(slot)
                slot.see(slot.param.grad)
            if not self.turns.unfinished_here:
                self._unscaled.clear()
            return
        grad = slot.param.grad
        if grad is None:
            self._lacks(slot, gradients[-1])
        elif grad.dtype != slot.param.dtype:
            raise self._error(texts.other_type(slot.param, grad))
        with self._lock:  # Within the hook, so nothing here counts as a use.
            if unseen_use(slot, on_probation=self._probation.watches):
                self.keep_barrier()
            if grad is not None:  # Hooks also run for outputs without a part in the loss.
                self.uses.has_part(slot)
            if not self.uses.expected:
                return  # within no_sync(), or in a pass without a forward of the module
            if self.logger.times is not None and not self.uses.counting:
                self.logger.times.gradient_ready(slot)
            due, over = self.uses.comes(slot)
            self._stage_all(due)
            if over:
                twice = texts.marked_twice(self.registered.index(slot), slot.name)
                raise self._error(texts.CHANGED_USE if self.uses.counted else twice)

    def _keep_place(self, slot: Slot) -> None:
        """Have the gradient of this round lie where torch would have it."""
        if self.terms.in_place:
            slot.keep_memory()
            self._unscaled.append(slot)

    def _close(self) -> None:
        self.uses.expected, self.pace.closed = False, True
        if self.sparse is not None:
            self.sparse.average()

    def _stage_all(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            if not slot.life.staged:
                self._stage(slot)

    def _stage(self, slot: Slot) -> None:
        """Stage one gradient of this round; the first one opens the round."""
        if not self.pace.open:
            self._begin()
        while not self.arrived(slot):  # Nobody has waited for the last average.
            self._wait_activity()
        layout = self.layout
        if layout.first_came is not None:
            layout.first_came.append(slot)
        self._keep_place(slot)
        leaves = self.uses.leaves(slot)
        if leaves and not self.uses.told and slot.param.grad is None:
            raise self._error(texts.UNDEFINED)
        assert layout.arena is not None
        self._left(slot, layout.arena.stage(slot, PROMISE if leaves else STAGE))
        self.pace.staged += 1
        if self.pace.staged == len(self.slots):
            self._end()

    def _begin(self) -> None:
        """Open a round, with the cut and the sequence that hold on all ranks from here on."""
        took_s = self.pace.began(time.monotonic())
        layout = self.layout
        if took_s is not None:
            self.iterated(layout.way, took_s)
        if layout.arena is None:
            layout.fill(self.registered, self.slots)
        else:
            if layout.buckets is not None:
                self._home()  # All buckets share the hook's state.
            if layout.first_came is not None and self.pace.ended:
                self._clear()
                self._arrange(layout.first_came)
            decision = self.channel.control.round_begins(self._wait)
            if decision is not None:
                self._clear()
                self._take_up(decision)
        operations = layout.operations() + self.uses.round_begins(self.channel.issuer.groups.all_reduce)
        for operation in operations:
            operation.times = self.logger.times
        self.channel.issuer.append(operations)
        self.pace.open = True

    def _clear(self) -> None:
        """Wait until nothing is in flight, and all averages have arrived."""
        for slot in self.slots:
            slot.comes()
        self.flush()
        self._home()
        assert self.layout.arena is not None
        for operation in self.layout.arena.under_way():
            self._wait(operation)

    def _home(self) -> None:
        """Wait until all averages have arrived."""
        for slot in self.slots:
            while not self.arrived(slot):
                self._wait_activity()

    def _arrange(self, first_came: Sequence[Slot]) -> None:
        """Arrange slots in the reverse of the order in which the deciding rank's first round generated gradients."""
        places = torch.tensor([slot.place for slot in reversed(first_came)], dtype=torch.int64, device="cpu")
        issuer = self.channel.issuer
        self._wait(issuer.put(lambda: issuer.groups.broadcast(places)))
        self.slots = [self.slots[place] for place in places.tolist()]
        for place, slot in enumerate(self.slots):
            slot.place = place
        self.layout.arrange(self.registered, self.slots)

    def _take_up(self, decision: Decision) -> None:
        layout = self.layout
        if decision.gathers and not layout.connect_phases(self.label, self._wait):
            decision = replace(layout.undecided(decision.cut), unordered=False)
        layout.take_up(decision)

    def _end(self) -> None:
        """End the round: all its gradients are staged."""
        assert self.layout.arena is not None
        self._unscaled.clear()
        now = time.monotonic()
        took_s = self.pace.end(now)
        if self.logger.times is not None:
            self.logger.times.backward_end = time.time_ns()
        training.iteration_ended(self.number, now)
        # As in torch, one more gradient is an error until this backward pass ends; later ones stay local to this rank.
        torch._C._ImperativeEngine().queue_callback(self._close)  # It waits for nothing (reducer.py).
        for operation in self.uses.round_ends():
            self.channel.issuer.ready(operation)
        self.channel.issuer.append(self.channel.control.round_ends(took_s))
        self.layout.arena.next_round()
        self.pace.tell()

    # Incoming averages.

    def _settle_unused(self) -> None:
        """Put averages in `.grad` for parameters that only other ranks used, and in any memory of torch's bucket."""
        used = self.used_by
        assert used is not None
        with self._lock, references.blind(), torch.no_grad():
            for slot in self.uses.without:
                held = (slot.seen_last(), slot.param.grad) if self.terms.in_place else ()
                memory = next((each for each in held if each is not None), None)
                if memory is not None or int(used[slot.place]):
                    self._wait_for(slot)
                    slot.put_in_grad(memory, bool(used[slot.place]))
            self.uses.without = []

    def norms(self, slots: Sequence[Slot], order: float) -> torch.Tensor | None:
        self._asked, self.layout.norm_order = True, order
        if self.layout.phases is None or self.pace.open:
            return None
        with references.waiting():
            return self.layout.phases.norms.of(slots, order, self._wait)

    @property
    def norms_are_rounded(self) -> bool:
        return self.layout.phases is not None and self.ranks > MOST_EXACT and not self.resting

    def keep_barrier(self) -> None:
        if self.trace is not None:
            self.trace.remove("it is compiled, or its parameters are used out of sight")
        super().keep_barrier()

    def before_compilation(self) -> None:
        # A compiled module must have no hooks, so the trace of forward ends.
        if self.trace is not None:
            self.keep_barrier()

    # The wire, as updates use it.

    def arrived(self, slot: Slot) -> bool:
        assert self.layout.arena is not None
        return self.layout.arena.arrived(slot)

    def landed(self, slot: Slot) -> bool:
        assert self.layout.arena is not None
        return self.layout.arena.landed(slot)

    def _wait_wire(self, limit_s: float) -> None:
        self.channel.issuer.wait_activity(limit_s)

    @property
    def failed(self) -> bool:
        return self.channel.issuer.error is not None

    @property
    def iteration(self) -> int:
        return self.pace.newest

    def _give_up(self) -> None:
        super()._give_up()
        self.channel.issuer.error_is_known()

    def _loss(self) -> str:
        return self.channel.loss(str(self.channel.issuer.error), self.iteration)

    def progress(self) -> object:
        return self.channel.issuer.ended

    def others(self) -> str:
        return self.channel.others(self.iteration)

    def _wait_activity(self) -> None:
        """Wait for activity within backward, which cannot continue before."""
        try:
            self.wait_activity(WAIT_LIMIT_S)
        except Abandoned as error:
            raise error.__cause__ or error from None

    def _wait(self, operation: JointOperation) -> None:
        while not operation.done:
            self._wait_activity()
