"""The slot: one parameter's gradient, from backward until its average is used.

Rule of this file: one gradient, what the program should find in `.grad`, and how the average gets there. arena.py has
its memory, life.py its states, and guards.py detects uses of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import unserializable_hook

from prophet_scheduler.frontends.torch import references
from prophet_scheduler.frontends.torch.life import Life, Sight
from prophet_scheduler.frontends.torch.memory import parts_of, storage_of
from prophet_scheduler.frontends.torch.streams import Event, Streams

if TYPE_CHECKING:
    from prophet_scheduler.frontends.torch.arena import ArenaBlock


@dataclass
class Assignment:
    """Assignment of a slot to an optimizer: `owner` (an Updates) makes its pending update; None before the first.

    `turn`: position in forward order among the owner's updates. `position`: the parameter's index among all that the
    optimizer updates. `group`: number of the parameter group with the pending update's hyper-parameters; None for no
    update.
    """

    owner: Any = None
    turn: int = 0
    position: int = 0
    group: int | None = None


class _Link:
    """Link from a slot to its parameter. `find()` returns that; None once the program has dropped it.

    `memory`: a tensor in the parameter's memory, once the program may drop the parameter while an update is pending.
    `path`: an autograd node that leads to the node that adds to `.grad`, and keeps it alive.
    """

    def __init__(self, param: torch.Tensor) -> None:
        self.find: Callable[[], torch.Tensor | None] = lambda: param
        self.memory: torch.Tensor | None = None
        self.path: Any = None


class _Seen:
    """The gradient that was seen last, in the state in which the program should find it."""

    def __init__(self) -> None:
        self.version: int | None = None
        """Its version; None if the program should find no gradient."""
        self._reference: weakref.ref[torch.Tensor] | None = None
        self._lies: tuple[StorageWeakRef, torch.dtype, Any] | None = None

    def see(self, grad: torch.Tensor, version: int) -> None:
        """Remember the gradient, and where it lies."""
        self.version = version
        with references.unhandled():
            part = parts_of(grad)[-1]
            storage = storage_of(part)  # None if it is sparse
            lies = part.storage_offset(), part.size(), part.stride()
            self._lies = None if storage is None else (StorageWeakRef(storage), part.dtype, lies)  # type: ignore[no-untyped-call]
            self._reference = weakref.ref(grad)

    @property
    def grad(self) -> torch.Tensor | None:
        """The gradient, also if the program should find none now; None if the program has dropped it."""
        return self._reference() if self._reference is not None else None

    @property
    def strides(self) -> Sequence[int] | None:
        """Layout of the gradient in memory; None if it is unknown."""
        return None if self._lies is None else self._lies[2][2]

    def in_its_memory(self) -> torch.Tensor | None:
        """Return a tensor in the gradient's memory; None if nothing holds this memory."""
        if self._lies is None:
            return None
        memory, dtype, lies = self._lies
        with references.unhandled():
            storage = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
            if storage is None:
                return None
            return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *lies)

    def forget(self) -> None:
        """Refer to no gradient."""
        self.version = self._reference = None


class Slot:
    """Gradient of one parameter: its place in the arena, and its state in this round.

    - `rounds` sends the gradient and receives its average; `attend` hooks two of its methods to the parameter.
    - `place`: position in forward order in the arena.
    - `life`: its state (life.py). `sight`: the noticed use of the parameter since the last step. `eager`: its update
      must not outlast step(), since a gradient arrived without a noticed use.
    - `view`: its memory in the arena, for the gradient and later its average. `blocks`: blocks of the present cut with
      a part of it.
    - `change`: the program's change to the gradient, yet to be applied to the average; None for no change.
    - `updated`: on devices with streams, the end of the last use of `view` by an update.
    - `watched`: state shared by all optimizers of this parameter (guards.py).
    """

    partial = False
    """True if each rank has a part of the parameter. Its update may communicate, unless it works by element."""
    view: torch.Tensor
    streams: Streams

    def __init__(self, rounds: Any, name: str, param: torch.Tensor, place: int) -> None:
        self.rounds = rounds
        self.name = name
        self.place = place
        self.assigned = Assignment()
        self.blocks: tuple[ArenaBlock, ...] = ()
        self.life = Life.LOCAL
        self.sight = Sight.UNSEEN
        self.eager = False
        self.change: Callable[[torch.Tensor], object] | None = None
        self.updated: Event = None
        self.watched: Any = None
        self._link = _Link(param)
        self._seen = _Seen()
        self._made_in: int | None = None
        """Number of the backward pass that made the gradient, if it lies where the program has had nothing."""

    @property
    def owner(self) -> Any:
        """The Updates that makes its pending update; None before the first."""
        return self.assigned.owner

    @property
    def accumulation(self) -> Any:
        """Autograd node that adds to `.grad`, or None once the program has dropped the module."""
        return self._link.path.next_functions[0][0] if self._link.path is not None else None

    @property
    def param(self) -> torch.Tensor:
        """The parameter, or another tensor in its memory if the program has dropped it and the memory is needed."""
        param = self._link.find()
        if param is None:
            param = self._link.memory
            assert param is not None
        return param

    @property
    def title(self) -> str:
        """Name for messages, with its module if the process has several."""
        label = getattr(self.rounds, "label", "")
        return f"{self.name} of {label}" if label else self.name

    @property
    def dropped(self) -> bool:
        return self._link.find() is None

    def let_go(self, reference: weakref.ref[torch.Tensor], memory: torch.Tensor | None) -> None:
        """Let the program drop the parameter from now on. `memory` is kept as long as an update is pending."""
        self._link.path, self._link.memory, self._link.find = None, memory, reference

    def let_memory_go(self) -> None:
        """Free the memory, once no gradient, average or update is to come. Blocks and owner link slots in cycles."""
        self.blocks, self.assigned, self._link.memory = (), Assignment(), None
        vars(self).pop("view", None)

    def hook(self, name: str) -> Callable[..., None]:
        """Return a hook that calls the method `name` of `rounds` with the slot and the hook's arguments.

        The garbage collector does not see such hooks, so they must not keep the rounds alive.
        """
        reference = weakref.ref(self)

        def hook(*gradients: Any) -> None:
            slot = reference()
            if slot is not None:
                with references.at_work():
                    getattr(slot.rounds, name)(slot, *gradients)

        # Pickling a parameter then omits the hook without a warning.
        unserializable_hook(hook)  # type: ignore[no-untyped-call]
        return hook

    def attend(self) -> tuple[Any, Any]:
        """Have `rounds` called when a gradient arrives and when it is in `.grad`. Return the handles of the two hooks.

        Both are hooks of the node that adds to `.grad`: they run after all hooks of the tensor, which may change the
        gradient and which the program may remove. Nothing else keeps the node alive. If Python kept it directly, each
        forward pass would wait for the GIL while holding a mutex of torch, and a fork would copy the locked mutex.
        """
        param: Any = self.param
        with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
            self._link.path = param.view_as(param).grad_fn
        comes = self.accumulation.register_prehook(self.hook("_gradient_comes"))
        return comes, self.accumulation.register_hook(self.hook("_gradient_ready"))

    def version_of(self, grad: torch.Tensor) -> int:
        """Return a number that changes with each write to the gradient."""
        return grad._version

    def see(self, grad: torch.Tensor | None) -> None:
        """Remember the gradient in the state in which the program should find it. None does not end its memory."""
        if grad is None:
            self._seen.version = None
        else:
            self._seen.see(grad, self.version_of(grad))

    @property
    def seen(self) -> torch.Tensor | None:
        """The gradient that the program should find; None if it should find none, or has dropped it."""
        return self._seen.grad if self._seen.version is not None else None

    def seen_last(self) -> torch.Tensor | None:
        """Return the gradient that was seen last, or another tensor in its memory if the program kept only that."""
        grad = self._seen.grad
        return self.in_its_memory() if grad is None else grad

    def in_its_memory(self) -> torch.Tensor | None:
        """Return a tensor in the memory of the gradient that was seen last; None if nothing holds this memory."""
        return self._seen.in_its_memory()

    def move(self) -> None:
        """Give the gradient other memory than the program may have kept."""
        if self.param.grad is not None:
            self.param.grad = self.param.grad.clone()
        self._seen = _Seen()
        self.see(self.param.grad)

    def note_pass(self) -> None:
        """Note the running backward pass, which is about to make the gradient or to add to it."""
        alone = self.param.grad is None and not self.param._post_accumulate_grad_hooks  # type: ignore[attr-defined]
        self._made_in = torch._C._current_graph_task_id() if alone else None

    def keep_memory(self) -> None:
        """Have the gradient lie in a bucket, as torch does: in the last one's memory if the program still holds it, and
        in no tensor that the program may have had before.
        """
        last = self.seen_last()
        grad = self.param.grad
        if grad is None or last is grad or grad.requires_grad:
            return
        if last is None and self._made_in == torch._C._current_graph_task_id():
            return
        with torch.no_grad(), references.unhandled():
            place = torch.empty_like(self.param, dtype=grad.dtype) if last is None else last
            if place.requires_grad:
                return
            self.param.grad = place.copy_(grad)

    def grad_unchanged(self) -> bool:
        """Return True while the program has neither cleared nor written the staged gradient."""
        grad = self.param.grad
        return grad is not None and grad is self.seen and self._seen.version == self.version_of(grad)

    def sent(self) -> torch.Tensor | None:
        """Return the staged gradient, wherever the program has put it, or another tensor in its memory if the program
        kept only that. Return None if the memory is gone, or the gradient was written to.
        """
        grad = self.seen_last() if self._seen.version is not None else None
        written = grad is not None and grad is self.seen and self._seen.version != self.version_of(grad)
        return None if written else grad

    def ends(self) -> Iterator[Event]:
        """Return the ends of its blocks' last transfers, on an engine that marks them. Call this after arrival."""
        return (block.end for block in self.blocks)

    def expect(self) -> None:
        """Expect the average in the present `.grad`, once backward has returned, no matter what the program or a hook
        did to it.
        """
        if not self.grad_unchanged():
            if self.param.grad is None:  # backward reported the gradient but gave none, which counts as zeros
                self.param.grad = torch.zeros_like(self.view, dtype=self.param.dtype)
            self.see(self.param.grad)

    def part(self) -> None:
        """Give the gradient its own version counter, since views of memory shared with another parameter share one.

        Then a write to the other gradient does not count as a write to this one.
        """
        grad = self.param.grad
        if grad is not None and self.life.due and self.grad_unchanged():
            sharing = [slot for slot in self.watched.slots if slot.sent() is grad]
            self.param.grad = grad.data
            for slot in sharing:
                slot.see(self.param.grad)

    def average(self) -> torch.Tensor:
        """Return the average in the parameter's own type and its gradient's layout, with the program's change: `view`
        itself, or a copy if another type travels, or if the program has laid out the parameter anew.
        """
        average = self._laid_out(self.view.to(self.param.dtype))
        self.apply_change(average, lasts=average is self.view)
        return average

    def apply_change(self, average: torch.Tensor, lasts: bool) -> None:
        """Apply the program's change to the gradient, if there is one; if it `lasts`, for the last time this round."""
        if self.change is not None:
            with torch.no_grad():
                self.change(average)
            self.change = None if lasts else self.change

    def _laid_out(self, average: torch.Tensor) -> torch.Tensor:
        """Return the average in the layout of the gradient that was seen last. Bits of an update depend on it, and some
        optimizers go through memory without regard to it.
        """
        strides = self._seen.strides
        if strides is None or average.stride() == strides:
            return average
        rows = zip(average.size(), average.stride(), strides, strict=True)
        if all(size == 1 or own == other for size, own, other in rows):
            return average
        return torch.empty_strided(average.size(), strides, dtype=average.dtype, device=average.device).copy_(average)

    def put_in_grad(self, memory: torch.Tensor | None = None, used: bool = True) -> None:
        """Put the arrived average into the parameter's `.grad`: in `memory`, or in a new tensor if it is None. If no
        rank has `used` the parameter, a `.grad` that is None stays so.

        Call this in torch.no_grad(), where nothing watches the program. For a staged gradient use `bring_home`.
        """
        self.streams.before_average(self.ends())
        average = self.average()
        absent = self.param.grad is None
        if memory is not None:
            self.param.grad = memory
        if self.param.grad is None:
            self.param.grad = average.clone() if average is self.view else average
        else:
            self.param.grad.copy_(average)
        self.see(self.param.grad)
        if absent and not used:
            self.param.grad = None
        self.updated = self.streams.mark()

    def bring_home(self, average: torch.Tensor | None = None) -> None:
        """Copy the average, or `average` as left by a step, to the staged gradient. Call this in torch.no_grad()."""
        grad = self.sent()
        if grad is not None:
            if grad.requires_grad:  # The graph of the average is this worker's share of it.
                with torch.enable_grad():
                    grad.mul_(1.0 / self.rounds.ranks)
            grad.copy_(self.average() if average is None else average)
            self.see(grad)

    def comes(self) -> None:
        """Note that the next gradient arrives: if no use was noticed before the pending update, it is late now."""
        if self.life.pending and self.sight is Sight.UNSEEN:
            self.sight = Sight.LATE

    def grad_as_seen(self) -> bool:
        """Return True while `.grad` is as the last step left it, which may be None."""
        return self.grad_unchanged() or (self.param.grad is None and self._seen.version is None)
