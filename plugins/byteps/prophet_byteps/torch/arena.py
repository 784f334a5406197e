"""The arena: an optimizer's gradients one after another in memory, and the blocks in which they travel.

Rule of this file: memory, blocks, and one round of push and pull; it knows parameters as tensors with a gradient, but
no optimizer and no module. Which blocks a cut makes is prophet/core/cut.py's, which cut holds is cutting.py's, and what
the process has but once (names, handles) is keys.py's.

Gradients of one kind lie in one buffer, in forward order, each as a view with its parameter's own strides. A block is a
range of a buffer, and to BytePS a tensor of its own: a slice of a large gradient, or many small ones, or both. Backward
copies a gradient to its place; a block leaves when all gradients are there of which it has a part; its average comes
back to the same place, and a parameter's update is due when all its blocks are back. Copying elements next to each
other mixes none of them, and BytePS adds and divides element by element, so the bits do not depend on the cut.

Two keys a block, and one memory. A server overwrites a key's sum at the first push of a new round, while a slower
worker may still wait for the last one, so each block has two keys and uses them in turn
(docs/decisions/two-keys-a-gradient.md has the argument). Both have the same memory here: before a gradient is copied to
its place, the update has read the average that was there. `Arena.stage` insists on it.

Another cut. Between two rounds, when nothing is on its way, the same memory can be seen as other blocks. A block is
known by its range, and one that was in use before has its keys from then. So a key has one length for ever, and
what a job has cost its servers is two sums for each range that was ever used.

Names. BytePS numbers tensors in the order in which they are declared, and workers must number alike. Which cuts a job
has had is not known to a worker that replaces another after a suspend. So all names that an optimizer may come to use
are declared at its first round, and a block takes the next that are free.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from prophet.core.cut import MOST_BLOCK_BYTES, Cut, blocks_of, ids_taken
from prophet_byteps.torch.keys import Engine
from prophet_byteps.torch.streams import Event, Streams

_FUSIBLE = (torch.float32, torch.float64)
"""For half precision the server's sum may round an element differently at another offset."""

MOST_NAMES = 16_384
"""Of one optimizer. BytePS numbers 65,536 tensors, maps a file for each key, of which Linux allows a process 65,530,
and looks through all names for a new one: so many take it 0.6 s, twice as many four."""
_FINE_BYTES, _COARSE_BYTES, _COARSE_CUTS = 128 * 1024, 512 * 1024, 8


def names_reserved(sizes: Sequence[int]) -> int:
    """For how many keys an optimizer with gradients of these bytes has names, where its cut may change.

    Enough for one cut into blocks of 128 KiB and eight into blocks of 512 KiB, unless that is above MOST_NAMES. A
    function of sizes alone, so a worker that joins has the same.
    """
    fine, coarse = (sum(sizes) // size + len(sizes) for size in (_FINE_BYTES, _COARSE_BYTES))
    return min(MOST_NAMES, 2 * (fine + _COARSE_CUTS * coarse))


def fusible_kind(param: torch.Tensor) -> Hashable | None:
    """What prophet.core.cut.blocks_of compares: tensors of one dtype and device may travel together."""
    return (param.dtype, param.device) if param.dtype in _FUSIBLE else None


class Slot:
    """One parameter's gradient: its place in the arena, and where it stands in this round.

    `place`: in forward order among the optimizer's. `view`: its place in memory, where it is gathered and where its
    average is when its blocks are back. `blocks`: those that have a part of it, under the present cut.
    `left`: backward passes until the gradient is due. `staged`: it is at its place in the arena.
    `pending`: step() was called, the update is still to come. `eager`: it must not outlast step(), since a gradient
    came without a use of the parameter that was watched. `late`: nothing had used the parameter when backward began.
    `touched`: the program reached the parameter in a way that is watched since the last step.
    `group`: the parameter group whose hyper-parameters the pending update takes, None for no update.
    `position`: the parameter's place among all that the optimizer updates.
    `updated`: on devices with streams, the end of the last use of `view` by an update.
    `watched`: what all optimizers of this parameter share (guards.py).
    """

    view: torch.Tensor
    streams: Streams

    def __init__(self, owner: Any, name: str, param: torch.Tensor, place: int, passes: int) -> None:
        self.owner = owner
        self.name = name
        self.param = param
        self.place = place
        self.blocks: tuple[KeyedBlock, ...] = ()
        self.left = passes
        self.staged = False
        self.pending = False
        self.eager = False
        self.late = False
        self.touched = False
        self.group: int | None = None
        self.position = 0
        self.updated: Event = None
        self.seen: tuple[weakref.ref[torch.Tensor], int] | None = None
        self.watched: Any = None

    def see(self, grad: torch.Tensor | None) -> None:
        """Remembers the gradient as the program is to find it."""
        self.seen = None if grad is None else (weakref.ref(grad), grad._version)

    def grad_unchanged(self) -> bool:
        """True while the program has neither cleared nor written the gradient that was staged."""
        grad = self.param.grad
        if grad is None or self.seen is None:
            return False
        reference, version = self.seen
        return reference() is grad and version == grad._version

    def grad_as_seen(self) -> bool:
        """True while `.grad` is as the last step left it, which may be nothing."""
        return self.grad_unchanged() or (self.param.grad is None and self.seen is None)


class KeyedBlock:
    """A range of one buffer: what travels as one tensor, under two names in turn.

    `id` is its place in forward order, lower for the more urgent; BytePS gets priority -(id + 1). `slots` are the
    gradients of which it has a part. `handle`: from its push until it is known to be back.
    """

    def __init__(self, data: torch.Tensor, slots: tuple[Slot, ...]) -> None:
        self.id = 0
        self.data = data
        self.slots = slots
        self.names = ("", "")
        self.handle: int | None = None
        self.missing = 0
        self.copies: list[Event] = []
        self.rounds = 0

    def open(self) -> None:
        """The next round: no gradient is there."""
        self.missing = len(self.slots)
        self.copies = []


class _Buffer:
    """The memory of one kind, allocated for all its slots at once; a view for each with the parameter's own strides."""

    def __init__(self, slots: Sequence[Slot], pinned: bool) -> None:
        first = slots[0].param
        count = sum(slot.param.numel() for slot in slots)
        self.data = torch.zeros(count, dtype=first.dtype, device=first.device, pin_memory=pinned and first.is_cpu)
        self.item_bytes = self.data.element_size()
        self.starts: dict[int, int] = {}
        """By place of a slot: where in the buffer its gradient begins, in elements."""
        offset = 0
        made = slots[0].streams.mark()
        for slot in slots:
            self.starts[slot.place] = offset
            strides = torch.empty_like(slot.param, device="meta").stride()
            slot.view = self.data.as_strided(slot.param.size(), strides, offset)
            slot.updated = made
            offset += slot.param.numel()


class Arena:
    """The gradients of one optimizer, and the blocks of the cut that holds.

    `slots` are in forward order. Without `fusion` each gradient is of its own kind. `streams(device)` gives a device's
    streams. To be made when the parameters are where they will be trained. `sizes` are the gradients' bytes, `first_id`
    is the first of its blocks' ids.
    """

    def __init__(
        self, slots: Sequence[Slot], fusion: bool, engine: Engine, number: int, streams: Callable[[Any], Streams]
    ) -> None:
        self.slots = slots
        self.sizes = [slot.param.nbytes for slot in slots]
        self.kinds = [fusible_kind(slot.param) if fusion else None for slot in slots]
        self.first_id = engine.take_ids(ids_taken(self.sizes))
        self.cut: Cut | None = None
        self.blocks: list[KeyedBlock] = []
        self._engine = engine
        self._number = number
        self._names: list[str] = []
        self._names_used = 0
        self._known: dict[tuple[int, int, int], KeyedBlock] = {}
        self._buffers: dict[int, _Buffer] = {}
        """By place of a slot: where it lies. Slots of one kind share one."""
        members: dict[Hashable, list[Slot]] = {}
        for slot, kind in zip(slots, self.kinds, strict=True):
            slot.streams = streams(slot.param.device)
            members.setdefault(("alone", slot.place) if kind is None else ("kind", kind), []).append(slot)
        for together in members.values():
            buffer = _Buffer(together, engine.pins_memory)
            self._buffers.update((slot.place, buffer) for slot in together)

    def begin(self, cut: Cut, may_change: bool) -> bool:
        """Declares the names that may be needed, and takes up the first cut. False where it is another one.

        That is the coarsest, where there are not names enough: where the cut is fixed, BytePS still cuts its blocks
        into partitions. All workers come here at the same point of the program.
        """
        needed = 2 * len(blocks_of(self.sizes, self.kinds, cut))
        self._reserve(names_reserved(self.sizes) if may_change else min(MOST_NAMES, needed))
        if self.recut(cut):
            return True
        coarsest = Cut.uniform(MOST_BLOCK_BYTES)
        self._reserve(2 * len(blocks_of(self.sizes, self.kinds, coarsest)))
        self.recut(coarsest)
        return False

    def _reserve(self, count: int) -> None:
        while len(self._names) < count:
            self._names.append(f"prophet.block.{self._number}.{len(self._names)}")
        for name in self._names[:count]:
            self._engine.bps.declare(name)

    def recut(self, cut: Cut) -> bool:
        """From now on gradients travel in the blocks of this cut. False, and nothing is changed, where names run out.

        Only while nothing is staged or on its way. New blocks take names in forward order, first all first ones and
        then all second ones: BytePS spreads tensors over its servers by number, so those of one round are in a row.
        """
        if any(block.handle is not None or block.missing < len(block.slots) for block in self.blocks):
            raise RuntimeError("blocks are cut anew while some are on their way")
        blocks: list[KeyedBlock] = []
        new: dict[tuple[int, int, int], KeyedBlock] = {}
        for wanted in blocks_of(self.sizes, self.kinds, cut):
            first = wanted.pieces[0]
            buffer = self._buffers[first.gradient]
            start = buffer.starts[first.gradient] + first.start // buffer.item_bytes
            stop = start + wanted.size_bytes // buffer.item_bytes
            # Two buffers have no gradient in common, so the first one says which it is.
            range_ = (first.gradient, start, stop)
            block = self._known.get(range_)
            if block is None:
                slots = tuple(self.slots[piece.gradient] for piece in wanted.pieces)
                block = new[range_] = KeyedBlock(buffer.data[start:stop], slots)
            block.id = self.first_id + wanted.id
            blocks.append(block)
        names = self._names[self._names_used : self._names_used + 2 * len(new)]
        if len(names) < 2 * len(new):
            return False
        self._names_used += len(names)
        for block, name, other in zip(new.values(), names, names[len(new) :], strict=False):
            block.names = (name, other)
        self._known.update(new)
        self.cut, self.blocks = cut, blocks
        parts: list[list[KeyedBlock]] = [[] for _ in self.slots]
        for block in blocks:
            block.open()
            for slot in block.slots:
                parts[slot.place].append(block)
        for slot, having in zip(self.slots, parts, strict=True):
            slot.blocks = tuple(having)
        return True

    def stage(self, slot: Slot) -> None:
        """Copies the parameter's gradient (zeros where it has none) to its place; blocks that are complete leave."""
        # The update that read the last average here.
        slot.streams.follow(slot.updated)
        grad = slot.param.grad
        if grad is not None and (grad.requires_grad or grad.is_sparse):
            what = "sparse" if grad.is_sparse else "itself part of a graph (create_graph)"
            raise ValueError(f"the gradient of {slot.name} is {what}, which BytePS cannot push")
        if slot.pending or any(block.handle is not None for block in slot.blocks):
            raise RuntimeError(f"the gradient of {slot.name} is there again before its last average was used")
        if grad is None:
            slot.view.zero_()
        else:
            slot.view.copy_(grad)
        slot.see(grad)
        slot.staged = True
        copied = slot.streams.mark()
        for block in slot.blocks:
            block.copies.append(copied)
            block.missing -= 1
            if block.missing == 0:
                slot.streams.before_push(block.copies)
                name = block.names[block.rounds % 2]
                block.handle = self._engine.push(block.data, name, -(block.id + 1), new=block.rounds < 2)
                block.rounds += 1

    def arrived(self, slot: Slot) -> bool:
        """Whether all blocks of the last round that have a part of the gradient are back."""
        for block in slot.blocks:
            if block.handle is not None:
                if not self._engine.arrived(block.handle):
                    return False
                block.handle = None
        return True

    def next_round(self, passes: int) -> None:
        """Opens the next round: each gradient is due after `passes` backward passes."""
        for block in self.blocks:
            block.open()
        for slot in self.slots:
            slot.staged = slot.touched = slot.late = False
            slot.left = passes

    def restart(self, passes: int) -> None:
        """Forgets all blocks: workers begin anew, some of which have never had any. `begin` must follow."""
        self.cut, self.blocks = None, []
        self._known = {}
        self._names_used = 0
        for slot in self.slots:
            slot.blocks = ()
        self.next_round(passes)
