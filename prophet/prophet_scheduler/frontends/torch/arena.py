"""The arena: gradients one after another in memory, and the blocks in which they travel.

Rule of this file: memory, blocks, and one round from gradients to averages. It knows parameters as tensors with a
gradient, but no optimizer, module or engine. core/cut.py makes the blocks of a cut, the workers agree on the cut in
force, and an engine's subclass of `Arena` defines how a block travels.

Gradients of one kind lie in one buffer, in forward order, each as a view with its parameter's own strides. A block is a
range of a buffer: a slice of a large gradient, many small gradients, or both. An engine sees it as a tensor of its own.
Backward copies each gradient to its place. A block is sent once all gradients with a part in it are ready, and its
average arrives in the same place. A parameter's update is due when all its blocks are back. Blocks keep elements
separate, and engines add and divide element by element, so the resulting bits do not depend on the cut.

The buffer holds the data as sent. If a job sends half precision, a gradient is rounded on its way in, and its average
is converted back to the parameter's type on its way out. So sizes to cut, learn and plan for are bytes on the wire.

Recutting. Between two rounds, when nothing is in flight, the same memory can be divided into other blocks. A block is
identified by its range; a range that was in use before gets the same block object again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.hooks import unserializable_hook

from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.frontends.torch import life, references
from prophet_scheduler.frontends.torch.life import END, STAGE, Life, Sight, Transition, move
from prophet_scheduler.frontends.torch.streams import Event, Streams

_FUSIBLE = (torch.float32, torch.float64)
"""Types that may share a buffer. Half-precision parameters have separate buffers."""


def fusible_kind(param: torch.Tensor, dtype: torch.dtype) -> Hashable | None:
    """Return the kind for core/cut.py's blocks_of: gradients sent as the same `dtype` from the same device may travel
    together; None for a gradient that must not.

    Gradients rounded for the wire may also travel together: gloo, NCCL and BytePS's servers round a sum of halves to
    nearest, ties to even, at any offset.
    """
    return (dtype, param.device) if param.dtype in _FUSIBLE else None


class Slot:
    """Gradient of one parameter: its place in the arena, and its state in this round.

    - `rounds` sends the gradient and receives its average; `attend` hooks two of its methods to the parameter. `owner`
      (an Updates) makes the pending update; None before the first.
    - `place`: position in forward order in the arena. `turn`: position in forward order among its owner's updates.
    - `life`: its state (life.py). `sight`: the noticed use of the parameter since the last step. `eager`: its update
      must not outlast step(), since a gradient arrived without a noticed use.
    - `view`: its memory in the arena, for the gradient and later its average. `blocks`: blocks of the present cut with
      a part of it.
    - `group`: number of the parameter group with the pending update's hyper-parameters; None for no update.
    - `position`: the parameter's index among all that the optimizer updates.
    - `change`: the program's change to the gradient, yet to be applied to the average; None for no change.
    - `updated`: on devices with streams, the end of the last use of `view` by an update.
    - `watched`: state shared by all optimizers of this parameter (guards.py).
    - `path`: an autograd node that leads to the node that adds to `.grad`, and keeps it alive.
    - `memory`: a tensor in the parameter's memory, once the program may drop the parameter while an update is pending.
    """

    partial = False
    """True if each rank has a part of the parameter. Its update may communicate, unless it works by element."""
    view: torch.Tensor
    streams: Streams

    def __init__(self, rounds: Any, name: str, param: torch.Tensor, place: int) -> None:
        self.rounds = rounds
        self.owner: Any = None
        self.name = name
        self._find: Callable[[], torch.Tensor | None] = lambda: param
        """Function that returns the parameter; None once the program has dropped it."""
        self.memory: torch.Tensor | None = None
        self.place = place
        self.turn = place
        self.blocks: tuple[ArenaBlock, ...] = ()
        self.life = Life.LOCAL
        self.sight = Sight.UNSEEN
        self.eager = False
        self.group: int | None = None
        self.position = 0
        self.change: Callable[[torch.Tensor], object] | None = None
        self.updated: Event = None
        self._version: int | None = None
        """Version of the gradient that the program should find; None if it should find none."""
        self._last: weakref.ref[torch.Tensor] | None = None
        """The gradient that was seen last, also after one that is None."""
        self._lies: tuple[StorageWeakRef, Any] | None = None
        self.watched: Any = None
        self.path: Any = None

    @property
    def accumulation(self) -> Any:
        """Autograd node that adds to `.grad`, or None once the program has dropped the module."""
        return self.path.next_functions[0][0] if self.path is not None else None

    @property
    def param(self) -> torch.Tensor:
        """The parameter, or another tensor in its memory if the program has dropped it and the memory is needed."""
        param = self._find()
        if param is None:
            assert self.memory is not None
            param = self.memory
        return param

    @property
    def title(self) -> str:
        """Name for messages, with its module if the process has several."""
        label = getattr(self.rounds, "label", "")
        return f"{self.name} of {label}" if label else self.name

    @property
    def dropped(self) -> bool:
        """True if the program has dropped the parameter."""
        return self._find() is None

    def let_go(self, reference: weakref.ref[torch.Tensor], memory: torch.Tensor | None) -> None:
        """Let the program drop the parameter from now on. `memory` is kept as long as an update is pending."""
        self.memory, self._find = memory, reference

    def let_memory_go(self) -> None:
        """Free the memory, once no gradient, average or update is to come. Blocks and owner link slots in cycles."""
        self.blocks, self.owner, self.memory = (), None, None
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
            self.path = param.view_as(param).grad_fn
        comes = self.accumulation.register_prehook(self.hook("_gradient_comes"))
        return comes, self.accumulation.register_hook(self.hook("_gradient_ready"))

    def version_of(self, grad: torch.Tensor) -> int:
        """Return a number that changes with each write to the gradient."""
        return grad._version

    def see(self, grad: torch.Tensor | None) -> None:
        """Remember the gradient in the state in which the program should find it. None does not end its memory."""
        self._version = None if grad is None else self.version_of(grad)
        if grad is not None:
            with references.unhandled():
                part = references.parts_of(grad)[-1]
                storage = references.storage_of(part)  # None if it is sparse
                lies = part.storage_offset(), part.size(), part.stride()
                self._lies = None if storage is None else (StorageWeakRef(storage), lies)  # type: ignore[no-untyped-call]
                self._last = weakref.ref(grad)

    @property
    def seen(self) -> torch.Tensor | None:
        """The gradient that the program should find; None if it should find none, or has dropped it."""
        return self._last() if self._version is not None and self._last is not None else None

    def seen_last(self) -> torch.Tensor | None:
        """Return the gradient that was seen last, or another tensor in its memory if the program kept only that."""
        grad = self._last() if self._last is not None else None
        return self.in_its_memory() if grad is None else grad

    def in_its_memory(self) -> torch.Tensor | None:
        """Return a tensor in the memory of the gradient that was seen last; None if nothing holds this memory."""
        if self._lies is None:
            return None
        memory, lies = self._lies
        with references.unhandled():
            storage = torch.UntypedStorage._new_with_weak_ptr(memory.cdata)
            if storage is None:
                return None
            return torch.empty(0, dtype=self.param.dtype, device=storage.device).set_(storage, *lies)

    def move(self) -> None:
        """Give the gradient other memory than the program may have kept."""
        if self.param.grad is not None:
            self.param.grad = self.param.grad.clone()
        self._lies = self._last = None
        self.see(self.param.grad)

    def keep_memory(self) -> None:
        """Reuse the last gradient's memory if the program still holds it, as torch does in a bucket."""
        last = self.seen_last()
        grad = self.param.grad
        if last is None or grad is None or last is grad or grad.requires_grad or last.requires_grad:
            return
        with torch.no_grad(), references.unhandled():
            last.copy_(grad)
        self.param.grad = last

    def grad_unchanged(self) -> bool:
        """Return True while the program has neither cleared nor written the staged gradient."""
        grad = self.param.grad
        return grad is not None and grad is self.seen and self._version == self.version_of(grad)

    def sent(self) -> torch.Tensor | None:
        """Return the staged gradient, wherever the program has put it, or another tensor in its memory if the program
        kept only that. Return None if the memory is gone, or the gradient was written to.
        """
        grad = self.seen_last() if self._version is not None else None
        written = grad is not None and grad is self.seen and self._version != self.version_of(grad)
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
        """Return the average in the parameter's own type and its gradient's layout: `view` itself, or a copy if another
        type travels, or if the program has laid out the parameter anew. Applies the program's change to the gradient,
        to `view` only once a round.
        """
        average = self._laid_out(self.view.to(self.param.dtype))
        if self.change is not None:
            with torch.no_grad():
                self.change(average)
            if average is self.view:
                self.change = None
        return average

    def _laid_out(self, average: torch.Tensor) -> torch.Tensor:
        """Return the average in the layout of the gradient that was seen last. Bits of an update depend on it, and some
        optimizers go through memory without regard to it.
        """
        strides = average.stride() if self._lies is None else self._lies[1][2]
        if average.stride() == strides:
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
        return self.grad_unchanged() or (self.param.grad is None and self._version is None)


class ArenaBlock:
    """Range of one buffer that travels as one tensor.

    `id`: its place in forward order; lower is more urgent. `slots`: the gradients with a part in it. `missing`: number
    of these that are not ready yet in this round. `flight`: the engine's handle, from sending until the block is known
    to be back. `end`: on an engine that uses a device's streams, the end of its last transfer.
    """

    def __init__(self, data: torch.Tensor, slots: tuple[Slot, ...]) -> None:
        self.id = 0
        self.data = data
        self.slots = slots
        self.flight: Any = None
        self.missing = 0
        self.copies: list[Event] = []
        self.end: Event = None

    def open(self) -> None:
        """Begin the next round, with no gradient ready."""
        self.missing = len(self.slots)
        self.copies = []


def travelling_bytes(slots: Sequence[Slot], half: torch.dtype | None = None) -> list[int]:
    """Return the bytes of each gradient on the wire. `half`: the type to round to; None for no rounding."""
    return [slot.param.numel() * _travels_in(slot.param, half).itemsize for slot in slots]


def kinds_of(slots: Sequence[Slot], fusion: bool, half: torch.dtype | None = None) -> list[Hashable | None]:
    """Return the kind of each gradient, see `fusible_kind`. Without `fusion`, none may travel together."""
    return [fusible_kind(slot.param, _travels_in(slot.param, half)) if fusion else None for slot in slots]


def _travels_in(param: torch.Tensor, half: torch.dtype | None) -> torch.dtype:
    return half if half is not None and param.is_floating_point() else param.dtype


class _Buffer:
    """Memory of one kind, allocated for all its slots at once, with a view for each in the strides of its gradient: the
    parameter's own, or those of a new tensor if that has gaps or overlaps.
    """

    def __init__(self, slots: Sequence[Slot], dtype: torch.dtype, pinned: bool) -> None:
        first = slots[0].param
        count = sum(slot.param.numel() for slot in slots)
        self.data = torch.zeros(count, dtype=dtype, device=first.device, pin_memory=pinned and first.is_cpu)
        self.item_bytes = self.data.element_size()
        self.starts: dict[int, int] = {}
        """Start of each slot's gradient in the buffer, in elements, by place."""
        offset = 0
        made = slots[0].streams.mark()
        for slot in slots:
            self.starts[slot.place] = offset
            like = torch.empty_like(slot.param, device="meta")
            if like.stride() != slot.param.stride():
                like = like.contiguous()
            slot.view = self.data.as_strided(like.size(), like.stride(), offset)
            slot.updated = made
            offset += slot.param.numel()


class Arena:
    """Gradients, and the blocks of the cut in force. An engine's subclass defines how blocks travel (`_accept` to
    `_back`).

    Create it when the parameters are where they will be trained. `slots`: in forward order. `fusion`: if False, each
    gradient has its own kind. `streams(device)`: returns a device's streams. `half`: the type to which all gradients
    are rounded on their way in; None for no rounding. `sizes`: bytes of the gradients on the wire. `first_id`: the
    first block's id. Gradients are multiplied by `scale` before rounding and divided by `divisor` after it, unless
    None. `bundles`: if given, each has its own memory; a bundle lists gradients by place, in the order in memory.
    """

    scale: float | None = None
    divisor: int | None = None
    graphs = False
    """True if gradients may be part of an autograd graph."""

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        streams: Callable[[Any], Streams],
        first_id: int = 0,
        pinned: bool = False,
        half: torch.dtype | None = None,
        bundles: Sequence[Sequence[int]] = (),
    ) -> None:
        self.slots = slots
        self.sizes = travelling_bytes(slots, half)
        dtypes = [_travels_in(slot.param, half) for slot in slots]
        self.kinds = kinds_of(slots, fusion, half)
        self.first_id = first_id
        self.cut: Cut | None = None
        self.blocks: list[ArenaBlock] = []
        self._known: dict[tuple[int, int, int], ArenaBlock] = {}
        self._buffers: dict[int, _Buffer] = {}
        """Buffer of each slot, by its place. Slots of one kind share one."""
        for number, places in enumerate(bundles):
            for place in places:
                self.kinds[place] = number
        members: dict[Hashable, list[Slot]] = {}
        in_memory = [place for places in bundles for place in places] or range(len(slots))
        for slot, kind in ((slots[place], self.kinds[place]) for place in in_memory):
            slot.streams = streams(slot.param.device)
            members.setdefault(("alone", slot.place) if kind is None else ("kind", kind), []).append(slot)
        for together in members.values():
            buffer = _Buffer(together, dtypes[together[0].place], pinned)
            self._buffers.update((slot.place, buffer) for slot in together)

    # The engine's part.

    def _block(self, data: torch.Tensor, slots: tuple[Slot, ...]) -> ArenaBlock:
        """Create a new block."""
        return ArenaBlock(data, slots)

    def _accept(self, new: Sequence[ArenaBlock]) -> bool:
        """Return True if these new blocks may travel from now on."""
        return True

    def _send(self, block: ArenaBlock) -> Any:
        """Send a complete block. Return its handle, which must not be None."""
        raise NotImplementedError

    def _back(self, block: ArenaBlock) -> bool:
        """Return True if a sent block is back. Not called again after that."""
        raise NotImplementedError

    # Common to all engines.

    def recut(self, cut: Cut) -> bool:
        """Use the blocks of this cut from now on. Return False, with nothing changed, if they may not travel.

        Raises RuntimeError while anything is staged or in flight.
        """
        if life.validating:
            self.validate()
        if any(block.flight is not None or block.missing < len(block.slots) for block in self.blocks):
            raise RuntimeError("blocks are recut while some are in flight")
        blocks: list[ArenaBlock] = []
        new: dict[tuple[int, int, int], ArenaBlock] = {}
        for wanted in blocks_of(self.sizes, self.kinds, cut):
            range_ = self._range(wanted)
            block = self._known.get(range_)
            if block is None:
                gradient, start, stop = range_
                slots = tuple(self.slots[piece.gradient] for piece in wanted.pieces)
                block = new[range_] = self._block(self._buffers[gradient].data[start:stop], slots)
            block.id = self.first_id + wanted.id
            blocks.append(block)
        if not self._accept(list(new.values())):
            return False
        self._known.update(new)
        self.cut, self.blocks = cut, blocks
        parts: list[list[ArenaBlock]] = [[] for _ in self.slots]
        for block in blocks:
            block.open()
            for slot in block.slots:
                parts[slot.place].append(block)
        for slot, having in zip(self.slots, parts, strict=True):
            slot.blocks = tuple(having)
        return True

    def new_blocks(self, cut: Cut) -> int:
        """Return the number of blocks of this cut that have never been in use."""
        return sum(self._range(block) not in self._known for block in blocks_of(self.sizes, self.kinds, cut))

    def _range(self, block: Block) -> tuple[int, int, int]:
        """Return the block's place in memory: a gradient in its buffer, its first element, and the element after it."""
        first = block.pieces[0].gradient
        buffer = self._buffers[first]
        start = min(buffer.starts[piece.gradient] + piece.start // buffer.item_bytes for piece in block.pieces)
        # Buffers share no gradients, so the first gradient identifies the buffer.
        return first, start, start + block.size_bytes // buffer.item_bytes

    def stage(self, slot: Slot, how: Transition = STAGE) -> bool:
        """Copy the parameter's gradient (zeros if it has none) to its place, and send the blocks that this completes.

        `how` is STAGE or PROMISE. Return True if the gradient is part of an autograd graph (create_graph).
        """
        # First wait for the update that reads the last average here.
        slot.streams.follow(slot.updated)
        seen = grad = slot.param.grad
        in_graph = grad is not None and grad.requires_grad
        if grad is not None and (grad.is_sparse or (in_graph and not self.graphs)):
            what = "sparse" if grad.is_sparse else "itself part of a graph (create_graph)"
            raise ValueError(f"the gradient of {slot.name} is {what}, which cannot be sent in blocks")
        if grad is not None and in_graph:
            grad = grad.detach()
        if slot.life.pending or any(block.flight is not None for block in slot.blocks):
            raise RuntimeError(f"the gradient of {slot.name} arrived again before its last average was used")
        with references.unhandled():  # torch's reducer does this unseen by the program's modes.
            if grad is None:
                slot.view.zero_()
            elif self.scale is None:
                slot.view.copy_(grad)
            else:
                torch.mul(grad, self.scale, out=slot.view)
            if self.divisor is not None:
                slot.view.div_(self.divisor)
        slot.see(seen)
        move((slot,), how)
        slot.change = None
        copied = slot.streams.mark()
        for block in slot.blocks:
            block.copies.append(copied)
            block.missing -= 1
            if block.missing == 0:
                slot.streams.before_push(block.copies)
                block.flight = self._send(block)
        return in_graph

    def arrived(self, slot: Slot) -> bool:
        """Return True if all of the last round's blocks with a part of the gradient are back."""
        for block in slot.blocks:
            if block.flight is not None:
                if not self._back(block):
                    return False
                block.flight = None
        return True

    def next_round(self) -> None:
        """End the round and open the next."""
        if life.validating:
            self.validate()
        for block in self.blocks:
            block.open()
        move(self.slots, END)
        for slot in self.slots:
            slot.sight = Sight.UNSEEN

    def validate(self) -> None:
        """Check that blocks match their gradients' states, and that no HOME gradient has blocks in flight."""
        for block in self.blocks:
            missing = [slot.name for slot in block.slots if not slot.life.staged]
            assert block.missing == len(missing), (block.id, block.missing, missing)
            assert block.flight is None or not 0 < len(missing) < len(block.slots), (block.id, missing)
        for slot in self.slots:
            assert slot.life is not Life.HOME or all(block.flight is None for block in slot.blocks), slot.name

    def restart(self) -> None:
        """Forget all blocks, since the workers restart and some are new. `recut` must follow."""
        self.cut, self.blocks = None, []
        self._known = {}
        for slot in self.slots:
            slot.blocks = ()
        self.next_round()
