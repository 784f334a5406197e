"""The sharded gradients of one model: each awaits its average, and backward does not.

Rule of this file: which reduction brings which gradient, and when its average is in `.grad`. awaited.py has the rest,
alike for all engines: step() leaves the update of a shard until its reduction has arrived. The update is made at the
module's next all-gather, or when anything else reads the shard. collectives.py starts reductions.

FSDP2 makes `.grad` of a reduction's result at once, or adds the result to an existing gradient. So FSDP2 gets zeros,
and the result has memory of its own.

An update must not communicate: ranks make updates as reductions arrive, each in its own order. So updates are late only
with optimizers that treat each element separately.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from prophet_ddp.agent import WatchingAgent, agents, records
from prophet_ddp.events import EventLog
from prophet_ddp.records import ModuleRecord
from prophet_fsdp.order import order_of
from prophet_fsdp.turns import OwnTurns
from prophet_fsdp.wire import Reduction, ShardWire, Stage
from prophet_scheduler.frontends.ending import raise_if_handlers, say
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.awaited import AwaitedRounds, living
from prophet_scheduler.frontends.torch.life import END, FORGET, PROMISE, PROMISED, move
from prophet_scheduler.frontends.torch.probation import Probation
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import streams_of
from prophet_scheduler.watch import training

if TYPE_CHECKING:
    from prophet_fsdp.collectives import Iterations

Exchange = Callable[[Sequence[float]], Sequence[Sequence[float]]]
"""Function that sends this rank's numbers to all ranks, and returns every rank's."""
SEVERAL_LIMIT_S = 0.002
"""Longest sleep, in seconds, while several wires may bring something."""

_numbers = itertools.count(1)
_rounds: weakref.WeakKeyDictionary[Any, ShardRounds] = weakref.WeakKeyDictionary()
"""By the state that FSDP2 shares among all modules of a model."""
_expected: weakref.WeakSet[Any] = weakref.WeakSet()
"""Modules whose model has no rounds yet."""


class ShardSlot(Slot):
    """Gradient of this rank's shard of a parameter. `view` is the result of its last reduction."""

    partial = True
    reduction: Reduction
    base: torch.Tensor | None = None
    """Gradient to which FSDP2 adds the result; None if there is none."""
    made_hook = 0
    """torch's number for our hook that runs when a gradient is made; 0 before there is one."""

    def promise(self, reduction: Reduction, view: torch.Tensor, base: torch.Tensor | None) -> None:
        """Promise the result of a reduction in flight to the gradient that FSDP2 has made."""
        self.reduction, self.view, self.base = reduction, view, base
        self.change = None
        move((self,), PROMISE)
        grad: Any = self.param.grad
        _first(grad).fill_(torch.nan)  # Shows if the program writes the gradient before the average arrives.
        self.see(grad)

    def end(self) -> None:
        """Await the promised result."""
        if self.life is PROMISED:
            if self.param.grad is None and self.sent() is None:  # The program has dropped it within backward.
                move((self,), FORGET)
            move((self,), END)

    def expect(self) -> None:
        """Keep what was seen at the promise: the program may have cleared or written the gradient within backward."""

    def sent(self) -> torch.Tensor | None:
        grad = super().sent()
        if grad is None:
            self._seen.forget()  # torch swaps a gradient, as in model.to(), only if nothing else refers to it.
        return grad

    def in_its_memory(self) -> torch.Tensor | None:
        part = super().in_its_memory()
        if part is None:
            return None
        param: Any = self.param
        with references.unhandled():
            grad: torch.Tensor = DTensor(part, param._spec, requires_grad=False)
            return grad if _first(grad).isnan().any() else None

    def version_of(self, grad: torch.Tensor) -> int:
        # torch._foreach_zero_, which zero_grad() calls, changes no version of a DTensor.
        with references.unhandled():
            return 2 * grad._version + bool(_first(grad).isnan().any())

    def part(self) -> None:
        grad: Any = self.param.grad
        if grad is not None and self.life.due and self.grad_unchanged():
            grad._local_tensor = grad._local_tensor.data
            self.see(grad)

    def average(self) -> torch.Tensor:
        param: Any = self.param
        local = self.view.to(param.dtype)
        if self.base is not None:
            local = self.base + local
        average: torch.Tensor = DTensor(local, param._spec, requires_grad=False)
        self.apply_change(average, lasts=local is self.view)
        return average

    def bring_home(self, average: Any = None) -> None:
        grad: Any = self.sent()
        if grad is not None:
            average = self.average() if average is None else average
            grad._local_tensor.copy_(average._local_tensor)
        self._seen.forget()
        self.base = None


def _first(grad: Any) -> torch.Tensor:
    """Return the first element of this rank's shard, shape [1], or [0] if the shard is empty."""
    first: torch.Tensor = grad._local_tensor.view(-1)[:1]
    return first


class Begun:
    """Reduction of this many elements, for gradients of some of `params`, whose `.grad` FSDP2 has yet to make. It may
    make those of frozen parameters, too: what gradients they had is reduced with the others.
    """

    def __init__(self, rounds: ShardRounds, params: Sequence[Any], elements: int) -> None:
        self._rounds = rounds
        self.elements = elements
        """Number of elements still without a gradient."""
        self._made: list[ShardSlot] = []
        trained = [param for param in params if param.sharded_param.requires_grad]
        self._frozen = [param for param in params if not param.sharded_param.requires_grad]
        sizes = [param.padded_sharded_param_size.numel() for param in trained]
        starts = itertools.accumulate(sizes, initial=0)
        grads = (param.sharded_param.grad for param in trained)
        bases = [None if grad is None else grad._local_tensor.clone() for grad in grads]
        self.parts = {id(part[0].sharded_param): part for part in zip(trained, sizes, starts, bases, strict=False)}
        """Knowledge of each gradient that FSDP2 has yet to make, by its parameter's id."""

    def left(self, stages: Sequence[Stage], result: torch.Tensor) -> None:
        """Start the reduction, with its stages."""
        self._result = result
        self._reduction = self._rounds.left(self, stages)

    def makes(self, slot: ShardSlot) -> None:
        """Promise a gradient that FSDP2 has made its part of the result. After the last one watch them all."""
        param, size, start, base = self.parts.pop(id(slot.param))
        slot.promise(self._reduction, self._part(param, start if base is not None else None), base)
        self._made.append(slot)
        self.elements -= size
        if not self.elements:
            torch_guards.keep_within_backward(self._rounds, self._made)

    def ends(self) -> None:
        """Handle the end of what FSDP2 makes. A frozen parameter shows no gradient that it gets, so fill it here."""
        if not self.elements:
            return
        self.elements = 0
        self._reduction.wait()
        for param in self._frozen:
            grad: Any = param.sharded_param.grad
            if grad is not None:
                grad._local_tensor.copy_(self._part(param))
        torch_guards.keep_within_backward(self._rounds, self._made)

    def _part(self, param: Any, start: int | None = None) -> torch.Tensor:
        """Return the part of the result that starts at this element; by default where FSDP2 has put the gradient."""
        if start is None:  # There may be fewer gradients than parameters.
            start = param.sharded_param.grad._local_tensor.storage_offset()
        return self._result.as_strided(param.sharded_size, param.contiguous_sharded_stride, start)


class ShardRounds(AwaitedRounds):
    """Rounds of one model. `params` are FSDP2's, in the order of modules. `exchange` shares measurements among ranks;
    None if the model always uses Prophet's collectives.
    """

    slot_type = ShardSlot

    def __init__(self, params: Sequence[Any], root: Any, exchange: Exchange | None) -> None:
        super().__init__(((param._param_fqn or "a parameter", param.sharded_param) for param in params), next(_numbers))
        self.label = name_of(root)
        # It is known how FSDP2 reaches its parameters.
        self._probation = Probation(steps=0)
        self._exchange = exchange
        self.turns = OwnTurns(possible=exchange is not None)
        self._decides = False
        """True if the ranks have yet to exchange what they measured."""
        self._wires: list[ShardWire] = []
        self._begun: Begun | None = None
        """Reduction whose gradients FSDP2 is making now."""
        self._ended = 0
        self._reduces: int | None = None
        """Thread whose backward pass has reduced a gradient and has not returned; None if there is none."""
        self.says: set[Iterations] = set()
        """Objects that report how long iterations take."""
        self.record = ModuleRecord()
        self.log = EventLog(open=False)
        self._order = order_of(root)
        self._by_param = {id(slot.param): slot for slot in self.slots if isinstance(slot, ShardSlot)}
        streams = streams_of(torch.device("cpu"))
        for slot in self.slots:
            slot.streams = streams
        self._attend()
        torch_guards.note_uses(self, False)
        weakref.finalize(root, self.dropped).atexit = False

    # Outgoing reductions.

    def next_comes(self, params: Sequence[Any]) -> None:
        """Bring home pending averages of these parameters: FSDP2 is about to make new gradients, or to add to them."""
        self._reduces = threading.get_ident()
        self._makes_no_more()
        slots = [slot for param in params if (slot := self._by_param.get(id(param.sharded_param))) is not None]
        for slot in slots:
            slot.end()
            self._bring_home(slot)

    def begin(self, params: Sequence[Any], elements: int) -> Begun | None:
        """Return what awaits a reduction of this many elements, for gradients of all or some of these parameters. None
        if its result is needed at once: a hook of the program reads it, or it is unclear which gradients it is for.
        """
        trained = [param for param in params if param.sharded_param.requires_grad]
        for param in trained:
            slot = self._by_param.get(id(param.sharded_param))
            if slot is None or self._has_hooks(slot):
                return None
        if any(param.sharded_param.grad is not None for param in params) and (
            len(trained) < len(params) or elements != sum(param.padded_sharded_param_size.numel() for param in params)
        ):
            return None  # FSDP2 shows which gradients it makes if there are none yet, or if it makes all.
        return Begun(self, params, elements)

    def _has_hooks(self, slot: ShardSlot) -> bool:
        """Return True if the program reads this gradient when it is made. Have our own hooks called from now on."""
        param: Any = slot.param
        if not param._post_accumulate_grad_hooks:
            param.register_hook(slot.hook("_gradient_comes"))
            slot.made_hook = param.register_post_accumulate_grad_hook(slot.hook("_made")).id
        return bool(param._post_accumulate_grad_hooks.keys() - {slot.made_hook})

    def _made(self, slot: ShardSlot, *_param: Any) -> None:
        """Handle a gradient that FSDP2 has made, or that autograd has added to."""
        if self._begun is not None and id(slot.param) in self._begun.parts:  # The program's own reductions make others.
            self._begun.makes(slot)

    def _gradient_comes(self, slot: Slot, *gradient: Any) -> None:
        # Autograd itself adds to it if the program uses its own shard of a parameter.
        self._makes_no_more()
        super()._gradient_comes(slot, *gradient)

    def _makes_no_more(self) -> None:
        """Handle the end of the gradients that FSDP2 makes of a reduction."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.ends()

    def left(self, begun: Begun, stages: Sequence[Stage]) -> Reduction:
        """Start a reduction, and await it."""
        for stage in stages:
            wire = stage.transfer.wire
            if wire not in self._wires:
                self._wires.append(wire)
                wire.log = self.log
        self._begun = begun
        self._left(self.slots[0], in_graph=False)
        return Reduction(stages)

    def settle(self, slots: Iterable[Slot]) -> None:
        slots = list(slots)
        if references.in_backward() and self._begun is not None and self._begun.elements:
            return  # FSDP2 itself reads gradients between two that it makes.
        if any(slot.life is PROMISED for slot in slots):  # The program reads one within backward.
            self._end(slots)
        super().settle(slots)

    def _end(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            assert isinstance(slot, ShardSlot)
            slot.end()

    def _gathered(self) -> None:
        self._forward_thread = self._order.forward_thread
        self._makes_no_more()
        self._end(self.slots)
        self._nothing_came()

    def _nothing_came(self) -> None:
        """Handle the end of a backward pass, even one without late reductions."""
        if self._reduces != threading.get_ident():
            return
        self._reduces = None
        self._order.settle()
        self._ended += 1
        now = time.monotonic()
        training.iteration_ended(self.number, now)
        for each in self.says:
            each.backward_ends(now)
        own = self.turns.own
        self._decides = self.turns.iteration_ends(now)
        if self.turns.own != own:
            self._order.lead(not self.turns.own)

    def own_turn(self) -> bool:
        """Return True while FSDP2's own collectives have their turn, or once they keep the model for good. Call this
        where the model is about to communicate: in a turn, the ranks first exchange what they measured. A rank whose
        backward pass has failed may never get there, so it does not wait for the others.
        """
        if self._decides and self._exchange is not None:
            self._decides = False
            own = self.turns.own
            try:
                self.turns.decide(self._exchange(self.turns.measured))
            except Exception as error:
                raise_if_handlers(error)
                self.turns.settled, self.turns.own = True, False  # A peer is lost: the next wait raises the error.
            if self.turns.own != own:
                self._order.lead(not self.turns.own)
            if self.turns.settled and self.turns.own:
                self._given_back()
        return self.turns.own

    def _given_back(self) -> None:
        """Record that FSDP2's own collectives keep the model for good, and say so on the first rank."""
        own_s, late_s = (f"{seconds:.3g} s" for seconds in self.turns.measured[:2])
        text = f"an iteration takes {own_s} with them and {late_s} under Prophet"
        records.given_back(text, self.record)
        if self.says:
            say(f"{self.label} has FSDP2's own collectives from now on: {text}")

    def before_compilation(self) -> None:
        # Compiled code hides from our guards that FSDP2 gathers in the middle of it.
        self.keep_barrier()

    def end(self) -> None:
        super().end()
        if not self.slots:
            self._by_param = {}

    # Incoming averages.

    def arrived(self, slot: Slot) -> bool:
        assert isinstance(slot, ShardSlot)
        return slot.reduction.there

    def _wait_wire(self, limit_s: float) -> None:
        for wire in self._wires:
            wire.wait_activity(limit_s if len(self._wires) == 1 else min(limit_s, SEVERAL_LIMIT_S))

    def progress(self) -> object:
        return [wire.ended for wire in self._wires]

    @property
    def iteration(self) -> int:
        return self._ended

    @property
    def failed(self) -> bool:
        return any(wire.error is not None for wire in self._wires)

    def _loss(self) -> str:
        error = next((wire.error for wire in self._wires if wire.error is not None), None)
        return f"the gradients of other ranks never arrived ({error})"


def name_of(module: Any) -> str:
    """Return the name that the module's class had before it was sharded or replicated."""
    return type(module).__name__.removeprefix("FSDP").removeprefix("Replicate")


def _exchange_of(shared: Sequence[Sequence[Any]]) -> Exchange | None:
    """Return the exchange among all ranks of a model whose modules have these groups. Return None if the modules differ
    in their groups, or if FSDP2's own collectives get no turns.
    """
    first, *others = shared
    if any(each != first for each in others) or not all(each.tries_own for each in first):
        return None

    def exchange(measured: Sequence[float]) -> list[list[float]]:
        every = torch.tensor(measured, dtype=torch.float64, device="cpu")
        for each in first:
            every = each.exchange(every)
        rows: list[list[float]] = every.view(-1, len(measured)).tolist()
        return rows

    return exchange


def expect(module: Any) -> None:
    """Note that Prophet moves this module's data from now on."""
    _expected.add(module)


def makes_gradients() -> bool:
    """Return True if the next backward pass may make gradients that await their averages."""
    return bool(_expected) or any(isinstance(rounds, ShardRounds) and not rounds.turns.own for rounds in living())


def rounds_of(module: Any, begin: bool) -> ShardRounds | None:
    """Return the rounds of the sharded module's model; with `begin` make them if there are none."""
    context = module._get_fsdp_state()._state_ctx
    if context not in _rounds and begin:
        from prophet_fsdp.collectives import Reduce

        groups = [group for state in context.all_states for group in state._fsdp_param_groups]
        ours = [group for group in groups if isinstance(group._reduce_scatter_comm, Reduce)]
        params = [param for group in ours for param in group.fsdp_params]
        exchange = _exchange_of([group._reduce_scatter_comm.shared for group in ours])
        made = _rounds[context] = ShardRounds(params, context.all_states[0]._modules[0], exchange)
        _expected.difference_update(module for state in context.all_states for module in state._modules)
        _watch(made, max(group.mesh_info.mesh.size() for group in ours))
    return _rounds.get(context)


def _watch(rounds: Any, ranks: int) -> None:
    """Report on the process's first model from now on, on each rank: nothing is learned. It is sharded over, or
    replicated on, `ranks` ranks.
    """
    rounds.record.decides = dist.get_rank() == 0
    if records.observes_next():
        rounds.log.reopen()
        rounds.record.drain = rounds.log.drain
        agents.add(WatchingAgent(rounds))
    records.follow(rounds.record, ranks)
