"""The arena: gradients one after another in memory, and the blocks in which they travel.

Rule of this file: memory, blocks, and one round from gradients to averages. It knows parameters as tensors with a
gradient, but no optimizer, no module and no engine. core/cut.py makes the blocks of a cut, the workers agree on the cut
that holds, and an engine adds to `Arena` how a block travels.

Gradients of one kind lie in one buffer, in forward order, each as a view with its parameter's own strides. A block is a
range of a buffer, and a tensor of its own for an engine: a slice of a large gradient, many small ones, or both.
Backward copies a gradient to its place. A block leaves once all gradients with a part in it are there, and its average
comes back to the same place. A parameter's update is due when all its blocks are back. Copying elements next to each
other mixes none of them, and engines add and divide element by element, so the bits do not depend on the cut.

The buffer holds what travels. Where a job sends half precision, a gradient is rounded on its way in, and its average is
converted back to the parameter's type on its way out. So the bytes to cut, learn and plan for are those of the wire.

Recutting. Between two rounds, when nothing is in flight, the same memory can be seen as other blocks. A block is known
by its range, and one that was in use before is the same object again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.hooks import unserializable_hook

from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.frontends.torch import life, references
from prophet_scheduler.frontends.torch.life import END, STAGE, Life, Sight, Transition, move
from prophet_scheduler.frontends.torch.streams import Event, Streams

_FUSIBLE = (torch.float32, torch.float64)
"""Types that may share a buffer. Parameters of half precision have buffers of their own."""


def fusible_kind(param: torch.Tensor, dtype: torch.dtype) -> Hashable | None:
    """Return the kind that prophet_scheduler.core.cut.blocks_of compares: gradients sent as one `dtype` from one device
    may travel together.

    So may gradients that are rounded for the wire: gloo, NCCL and BytePS's servers round a sum of halves to the
    nearest, to even, at any offset.
    """
    return (dtype, param.device) if param.dtype in _FUSIBLE else None


class Slot:
    """Gradient of one parameter: its place in the arena, and its state in this round.

    - `rounds` (a GradientSource of ports.py) gathers the gradient and brings back its average; `owner` (an UpdateOwner)
      makes the pending update, None before the first.
    - `place`: position in forward order in the arena; `turn`: position in forward order among its owner's updates.
    - `life`: its state (life.py). `sight`: the noticed use of the parameter since the last step. `eager`: its update
      must not outlast step(), since a gradient came without a noticed use.
    - `view`: its memory, where it is gathered and where its average arrives. `blocks`: those of the present cut with a
      part of it.
    - `group`: the parameter group whose hyper-parameters the pending update takes, None for no update.
    - `position`: the parameter's place among all that the optimizer updates.
    - `change`: what the program did to the gradient, still to be done to the average; None for nothing.
    - `updated`: on devices with streams, the end of the last use of `view` by an update.
    - `watched`: state shared by all optimizers of this parameter (guards.py).
    - `path`: a node of torch's that leads to the one that adds to `.grad`, and keeps it.
    - `memory`: a tensor in the parameter's memory, once the program may drop the parameter while an update is pending.
    """

    partial = False
    """True if each rank has a part of the parameter. Its update may communicate, unless it is by element."""
    view: torch.Tensor
    streams: Streams

    def __init__(self, rounds: Any, name: str, param: torch.Tensor, place: int) -> None:
        self.rounds = rounds
        self.owner: Any = None
        self.name = name
        self._param: torch.Tensor | None = param
        self._reference: weakref.ref[torch.Tensor] | None = None
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
        self.seen: tuple[weakref.ref[torch.Tensor], int] | None = None
        self.watched: Any = None
        self.path: Any = None

    @property
    def accumulation(self) -> Any:
        """Return torch's node that adds to `.grad`, or None once the program has dropped the module."""
        return self.path.next_functions[0][0] if self.path is not None else None

    @property
    def param(self) -> torch.Tensor:
        """Return the parameter, or another tensor in its memory if the program dropped it and that is still needed."""
        param = self._param if self._reference is None else self._reference()
        if param is None:
            assert self.memory is not None
            param = self.memory
        return param

    @property
    def title(self) -> str:
        """Name in messages: with its module, where the process has several."""
        label = getattr(self.rounds, "label", "")
        return f"{self.name} of {label}" if label else self.name

    @property
    def dropped(self) -> bool:
        """True if the program has dropped the parameter."""
        return self._reference is not None and self._reference() is None

    def let_go(self, reference: weakref.ref[torch.Tensor], memory: torch.Tensor | None) -> None:
        """Let the program drop the parameter from now on. `memory` stays as long as an update is to come."""
        self.memory = memory
        self._reference, self._param = reference, None

    def let_memory_go(self) -> None:
        """Free the memory, once nothing is to come and no gradient. Slots refer to each other by blocks and owner."""
        self.blocks, self.owner, self.memory = (), None, None
        vars(self).pop("view", None)

    def hook(self, name: str) -> Callable[..., None]:
        """Return a hook that calls this method of `rounds` with the slot and the hook's arguments.

        The garbage collector does not see such hooks, so they must not keep the rounds alive.
        """
        reference = weakref.ref(self)

        def hook(*gradients: Any) -> None:
            slot = reference()
            if slot is not None:
                with references.at_work():
                    getattr(slot.rounds, name)(slot, *gradients)

        # Pickling a parameter leaves it out, without a warning.
        unserializable_hook(hook)  # type: ignore[no-untyped-call]
        return hook

    def attend(self) -> tuple[Any, Any]:
        """Have `rounds` called when a gradient comes and when it is in `.grad`. Returns the handles of the two hooks.

        Both are hooks of the node that adds to `.grad`: they run after all hooks of the tensor, which may change the
        gradient and which the program may remove. Nobody else keeps the node. If Python alone kept it, each forward
        pass would wait for Python's lock with a mutex of torch's in hand, and a fork would copy the mutex so.
        """
        param: Any = self.param
        with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
            self.path = param.view_as(param).grad_fn
        comes = self.accumulation.register_prehook(self.hook("_gradient_comes"))
        return comes, self.accumulation.register_hook(self.hook("_gradient_ready"))

    def version_of(self, grad: torch.Tensor) -> int:
        """Return a number that another write to the gradient changes."""
        return grad._version

    def see(self, grad: torch.Tensor | None) -> None:
        """Remember the gradient as the program is to find it."""
        self.seen = None if grad is None else (weakref.ref(grad), self.version_of(grad))

    def keep_memory(self) -> None:
        """Put the gradient into the last one's memory if the program still has that one, as torch does in a bucket."""
        last = self.seen[0]() if self.seen is not None else None
        grad = self.param.grad
        if last is None or grad is None or last is grad or grad.requires_grad or last.requires_grad:
            return
        with torch.no_grad(), references.unhandled():
            last.copy_(grad)
        self.param.grad = last

    def grad_unchanged(self) -> bool:
        """True while the program has neither cleared nor written the staged gradient."""
        grad = self.param.grad
        if grad is None or self.seen is None:
            return False
        reference, version = self.seen
        return reference() is grad and version == self.version_of(grad)

    def sent(self) -> torch.Tensor | None:
        """Return the staged gradient, wherever the program has put it. None if it is gone or was written to."""
        if self.seen is None:
            return None
        reference, version = self.seen
        grad = reference()
        return grad if grad is not None and version == self.version_of(grad) else None

    def ends(self) -> Iterator[Event]:
        """Return the ends of its blocks' last transfers, on an engine that marks them. Call it after arrival."""
        return (block.end for block in self.blocks)

    def expect(self) -> None:
        """Expect the average in the present `.grad`, once backward has returned, whatever the program or a hook did to
        it.
        """
        if not self.grad_unchanged():
            if self.param.grad is None:  # backward reported the gradient but none came, which counts as zeros
                self.param.grad = torch.zeros_like(self.view, dtype=self.param.dtype)
            self.see(self.param.grad)

    def part(self) -> None:
        """Give the gradient a version count of its own: views in memory shared with another parameter's count together.

        A write to the other one is then none to it.
        """
        grad = self.param.grad
        if grad is not None and self.life.due and self.grad_unchanged():
            sharing = [slot for slot in self.watched.slots if slot.sent() is grad]
            self.param.grad = grad.data
            for slot in sharing:
                slot.see(self.param.grad)

    def average(self) -> torch.Tensor:
        """Return the average in the parameter's own type: `view` itself, or a copy where a smaller type travels. What
        the program did to the gradient is done to it, to `view` once a round.
        """
        average = self.view.to(self.param.dtype)
        if self.change is not None:
            with torch.no_grad():
                self.change(average)
            if average is self.view:
                self.change = None
        return average

    def put_in_grad(self) -> None:
        """Put the arrived average into the parameter's `.grad`: a new tensor if it has none.

        In torch.no_grad(), where nothing watches the program. For a gradient that was sent use `bring_home`.
        """
        self.streams.before_average(self.ends())
        average = self.average()
        if self.param.grad is None:
            self.param.grad = average.clone() if average is self.view else average
        else:
            self.param.grad.copy_(average)
        self.see(self.param.grad)
        self.updated = self.streams.mark()

    def bring_home(self, average: torch.Tensor | None = None) -> None:
        """Copy the average, as a step has left it if one has, to the staged gradient. In torch.no_grad()."""
        grad = self.sent()
        if grad is not None:
            if grad.requires_grad:  # The average's graph is this worker's part of it.
                with torch.enable_grad():
                    grad.mul_(1.0 / self.rounds.ranks)
            grad.copy_(self.average() if average is None else average)
            self.see(grad)

    def comes(self) -> None:
        """Note that its next gradient comes, or may not: a use of the parameter before the update is late now."""
        if self.life.pending and self.sight is Sight.UNSEEN:
            self.sight = Sight.LATE

    def grad_as_seen(self) -> bool:
        """True while `.grad` is as the last step left it, which may be None."""
        return self.grad_unchanged() or (self.param.grad is None and self.seen is None)


class ArenaBlock:
    """Range of one buffer: travels as one tensor.

    `id` is its place in forward order, lower for the more urgent. `slots` are the gradients with a part in it.
    `missing` counts those not there yet in this round. `flight`: the engine's handle, from when the block leaves until
    it is known to be back. `end`: where the engine works on a device's streams, the end of its last transfer there.
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
        """Begin the next round: no gradient is there."""
        self.missing = len(self.slots)
        self.copies = []


def travelling_bytes(slots: Sequence[Slot], half: torch.dtype | None = None) -> list[int]:
    """Return the bytes of each gradient on the wire. `half` is the type to round to, None for no rounding."""
    return [slot.param.numel() * _travels_in(slot.param, half).itemsize for slot in slots]


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
        """Start of each slot's gradient in the buffer, in elements, by the slot's place."""
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
    """Gradients, and the blocks of the cut in force. An engine's subclass says how blocks travel (`_accept` to
    `_back`).

    `slots` are in forward order. Without `fusion` each gradient is of its own kind. `streams(device)` gives a device's
    streams. Make it when the parameters are where they will be trained. `half`, if given, is the type all gradients are
    rounded to on their way in, and `sizes` are their bytes on the wire. `first_id` is the first block's id. Gradients
    are multiplied by `scale` before rounding and divided by `divisor` after it; None for neither. With `bundles` each
    of them, and nothing else, has memory of its own: gradients by place, in the order in which they lie there.
    """

    scale: float | None = None
    divisor: int | None = None
    graphs = False
    """True if gradients may be part of a graph."""

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
        self.kinds = [
            fusible_kind(slot.param, dtype) if fusion else None for slot, dtype in zip(slots, dtypes, strict=True)
        ]
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
        """Make a block that did not exist before."""
        return ArenaBlock(data, slots)

    def _accept(self, new: Sequence[ArenaBlock]) -> bool:
        """True if these new blocks may travel from now on."""
        return True

    def _send(self, block: ArenaBlock) -> Any:
        """Send a complete block. Returns its handle, not None."""
        raise NotImplementedError

    def _back(self, block: ArenaBlock) -> bool:
        """True if a sent block is back. Not asked again once it is."""
        raise NotImplementedError

    # Common to all engines.

    def recut(self, cut: Cut) -> bool:
        """Use the blocks of this cut from now on. False, with nothing changed, if they may not travel.

        Raises RuntimeError while anything is staged or in flight.
        """
        if life.validating:
            self.validate()
        if any(block.flight is not None or block.missing < len(block.slots) for block in self.blocks):
            raise RuntimeError("blocks are cut anew while some are on their way")
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
        """Return the number of blocks of this cut that were never in use."""
        return sum(self._range(block) not in self._known for block in blocks_of(self.sizes, self.kinds, cut))

    def _range(self, block: Block) -> tuple[int, int, int]:
        """Return the block's place in memory: a gradient of its buffer, and its first and last element (exclusive)."""
        first = block.pieces[0].gradient
        buffer = self._buffers[first]
        start = min(buffer.starts[piece.gradient] + piece.start // buffer.item_bytes for piece in block.pieces)
        # Two buffers share no gradient, so the first one identifies its buffer.
        return first, start, start + block.size_bytes // buffer.item_bytes

    def stage(self, slot: Slot, how: Transition = STAGE) -> bool:
        """Copy the parameter's gradient (zeros if it has none) to its place, and send blocks that are complete.

        `how` is STAGE or PROMISE. Returns True if the gradient is a part of a graph (create_graph).
        """
        # The update that read the last average here comes first.
        slot.streams.follow(slot.updated)
        seen = grad = slot.param.grad
        in_graph = grad is not None and grad.requires_grad
        if grad is not None and (grad.is_sparse or (in_graph and not self.graphs)):
            what = "sparse" if grad.is_sparse else "itself part of a graph (create_graph)"
            raise ValueError(f"the gradient of {slot.name} is {what}, which cannot be sent in blocks")
        if grad is not None and in_graph:
            grad = grad.detach()
        if slot.life.pending or any(block.flight is not None for block in slot.blocks):
            raise RuntimeError(f"the gradient of {slot.name} is there again before its last average was used")
        with references.unhandled():  # No mode of the program sees or changes what torch's reducer does here.
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
        """True if all blocks of the last round with a part of the gradient are back."""
        for block in slot.blocks:
            if block.flight is not None:
                if not self._back(block):
                    return False
                block.flight = None
        return True

    def next_round(self) -> None:
        """End the round, and open the next one."""
        if life.validating:
            self.validate()
        for block in self.blocks:
            block.open()
        move(self.slots, END)
        for slot in self.slots:
            slot.sight = Sight.UNSEEN

    def validate(self) -> None:
        """Check that blocks are as full as their gradients' states say, and that what is at home is back."""
        for block in self.blocks:
            missing = [slot.name for slot in block.slots if not slot.life.staged]
            assert block.missing == len(missing), (block.id, block.missing, missing)
            assert block.flight is None or not 0 < len(missing) < len(block.slots), (block.id, missing)
        for slot in self.slots:
            assert slot.life is not Life.HOME or all(block.flight is None for block in slot.blocks), slot.name

    def restart(self) -> None:
        """Forget all blocks: the workers begin anew, and some have never had any. `recut` must follow."""
        self.cut, self.blocks = None, []
        self._known = {}
        for slot in self.slots:
            slot.blocks = ()
        self.next_round()
