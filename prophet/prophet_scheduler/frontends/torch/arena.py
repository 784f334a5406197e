"""The arena: gradients one after another in memory, and the blocks in which they travel.

Rule of this file: memory, blocks, and one round from gradients to averages. It knows gradients as slots (slot.py), but
no optimizer, module or engine. core/cut.py makes the blocks of a cut, the workers agree on the cut in force, and an
engine's subclass of `Arena` defines how a block travels.

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

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.frontends.torch import life, references
from prophet_scheduler.frontends.torch.life import END, STAGE, Life, Sight, Transition, move
from prophet_scheduler.frontends.torch.slot import Slot
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


@dataclass(eq=False)
class ArenaBlock:
    """Range of one buffer that travels as one tensor.

    `id`: its place in forward order; lower is more urgent. `slots`: the gradients with a part in it. `missing`: number
    of these that are not ready yet in this round. `flight`: the engine's handle, from sending until the block is known
    to be back. `end`: on an engine that uses a device's streams, the end of its last transfer.
    """

    data: torch.Tensor
    slots: tuple[Slot, ...]
    id: int = 0
    flight: Any = None
    missing: int = 0
    copies: list[Event] = field(default_factory=list)
    end: Event = None

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
        if grad is not None and grad.is_sparse:
            raise ValueError(f"the gradient of {slot.name} is sparse, which cannot be sent in blocks")
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
