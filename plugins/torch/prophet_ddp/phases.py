"""A round in two phases: each gradient is summed by the rank that owns it, and the sums are gathered later.

Rule of this file: who owns what, and the operations of such a round. agent.py decides when a job has such rounds;
issuer.py orders operations.

An all-reduce is a reduce-scatter and an all-gather, and brings every average to every rank. A program that clips
gradients by their total norm needs no averages for that, only one number for each. The owner of a gradient knows its
norm once it is summed, with half of the bytes sent. So all blocks are *reduced* first, in the order in which backward
generates them. Then ranks exchange the norms. Then all blocks are *gathered*, in the order in which the next forward
pass needs them, and while it runs. The program waits for the first half alone (ZeRO, Rajbhandari et al. 2020,
section 5, sends the same halves for its own reasons, and waits for both).

A gradient has one owner, and so has a block: the norms of two halves do not give that of the whole to the last bit. The
owner sums in the order of ranks, and all ranks get its sum, so with two ranks the bits are those of an all-reduce.

Data to and from each owner has connections of its own. Gloo sends once the receiver has announced that it waits. If
data went both ways over one connection, these announcements would queue behind it.

Nothing here waits for the program: all is sent as soon as possible, whether or not the program reads it or clips.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prophet_ddp.events import Phase
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import UNIT_BYTES, Block, Borders, Cut, arena_places
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.arena import ArenaBlock, Slot
from prophet_scheduler.frontends.torch.clipping import NORM

AT_ONCE = 4
"""Maximum number of operations in flight for each owner."""


@dataclass(frozen=True)
class Division:
    """Blocks, each with one owner as far as their kinds allow. `owners` has a rank for each gradient; it is empty if
    all ranks own an equal part of each block.

    `imbalance` is the load of the rank that owns the most, divided by an equal share; 1 if all loads are equal.
    """

    cut: Cut
    owners: tuple[int, ...] = ()
    imbalance: float = 1.0


def divide(cut: Cut, sizes: Sequence[int], ranks: int) -> Division:
    """Divide gradients of these sizes (bytes, as they lie in the arena) among ranks, in blocks of about the cut's size.

    Neighbours that are smaller than a block are grouped. The next largest group goes to the rank with the smallest load
    (Graham 1969, LPT). Sizes with the same number of binary digits count as equal: such groups go to one rank after
    another, in the order of generation. The result is the same on all ranks.
    """
    places = arena_places(sizes)
    groups: list[tuple[int, int]] = []
    first = 0
    for gradient in range(len(sizes)):
        whole = places[gradient + 1] - places[first] >= cut.block_bytes_at(places[first])
        if whole or gradient + 1 == len(sizes):
            groups.append((first, gradient + 1))
            first = gradient + 1
    loads = [0] * ranks
    owners = [0] * len(sizes)
    borders: list[int] = []
    for first, last in sorted(
        groups, key=lambda group: (-(places[group[1]] - places[group[0]]).bit_length(), -group[0])
    ):
        size_bytes = places[last] - places[first]
        owner = min(range(ranks), key=loads.__getitem__)
        loads[owner] += size_bytes
        owners[first:last] = [owner] * (last - first)
        count = max(1, round(size_bytes / cut.block_bytes_at(places[first])))
        borders += [places[first] + size_bytes * part // count // UNIT_BYTES * UNIT_BYTES for part in range(count)]
    return Division(Borders.at(borders, places[-1]), tuple(owners), max(loads) * ranks / max(1, sum(loads)))


def orders_of(
    blocks: Sequence[Block],
    owners: Sequence[int],
    ready_s: Sequence[float],
    needed: Sequence[int],
    bandwidth: float,
    ranks: int,
    at_once: int,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of `blocks` in the order of reduction, and in the order of gathering.

    `owners` are those of the gradients. `ready_s`, by place, is when each block is generated. `needed` has the places
    as forward needs the blocks. Bandwidth is in bytes per second; `at_once` operations are in flight for each owner.
    An owner's blocks share its link, and other links would idle if everything in flight used the same one. So a block
    that would wait long for its link lets others pass.
    """
    ways = [owners[block.pieces[0].gradient] if owners else 0 for block in blocks]
    takes_s = [block.size_bytes * (ranks - 1) / bandwidth for block in blocks]
    lead_s = at_once / 2 * sum(takes_s) / len(takes_s)
    by_time = sorted(range(len(blocks)), key=lambda place: (ready_s[place], -place))

    def ordered(wanted: Sequence[int], ready_s: Sequence[float]) -> tuple[int, ...]:
        free_s: dict[int, float] = {}
        issue_s: dict[int, float] = {}
        for place in wanted:
            begin_s = max(ready_s[place], free_s.get(ways[place], 0.0))
            free_s[ways[place]] = begin_s + takes_s[place]
            issue_s[place] = max(ready_s[place], begin_s - lead_s)
        return tuple(sorted(wanted, key=issue_s.__getitem__))

    return ordered(by_time, ready_s), ordered(needed, [0.0] * len(blocks))


def norm_of(sums: torch.Tensor, order: float) -> torch.Tensor:
    """Return the norm of sums as the program gets it, in single precision, even if they travelled in half."""
    norm: torch.Tensor = torch.linalg.vector_norm(sums.to(torch.float32), order)
    return norm


class OwnNorms:
    """Norms of whole gradients; each owner tells all ranks those of its own. `owners` are those of the gradients."""

    def __init__(self, issuer: Issuer, slots: Sequence[Slot], owners: Sequence[int], rank: int, ranks: int) -> None:
        self._issuer = issuer
        self._rank, self._ranks = rank, ranks
        self._slots = len(slots)
        # By slot, the gradient, which is still summed once the program has dropped the module.
        self._own = {slot: slot.view for slot, owner in zip(slots, owners, strict=True) if owner == rank}
        self._lock = free_in_forks(threading.Lock())
        self._left: dict[Slot, int] = {}
        """Number of blocks still to be reduced, for each gradient that this rank owns."""
        self._without_norm = 0
        self._order = NORM
        self._norms = torch.zeros(0)
        self._known = JointOperation(lambda: None)

    def begin(self, order: float) -> JointOperation:
        """Begin a round with norms of this order. Return the operation that exchanges them."""
        self._order = order
        self._norms = torch.zeros(self._slots + 2 * self._ranks, dtype=torch.float32, device="cpu")
        norms, issuer = self._norms, self._issuer
        self._known = JointOperation(lambda: issuer.groups.all_reduce(norms))
        self._left = {slot: len(slot.blocks) for slot in self._own if slot.blocks}  # An empty gradient has none.
        self._without_norm = len(self._left)
        if not self._left:
            self._tell()
        return self._known

    def reduced(self, block: ArenaBlock) -> None:
        """Handle a reduced block, in a thread of torch's."""
        with self._lock:
            own = [slot for slot in block.slots if slot in self._left]
            for slot in own:
                self._left[slot] -= 1
            summed = [slot for slot in own if not self._left[slot]]
        for slot in summed:
            self._norms[slot.place] = norm_of(self._own[slot], self._order)
        with self._lock:
            self._without_norm -= len(summed)
            all_known = bool(summed) and not self._without_norm
        if all_known:
            self._tell()

    def _tell(self) -> None:
        # torch splits a norm among threads, so its bits depend on their number.
        how = torch.get_num_threads(), self._order
        self._norms[self._slots :].view(self._ranks, 2)[self._rank] = torch.tensor(
            how, dtype=torch.float32, device="cpu"
        )
        self._issuer.ready(self._known)

    def of(self, slots: Sequence[Slot], order: float, wait: Callable[[JointOperation], None]) -> torch.Tensor | None:
        """Return the norms of this order of these gradients' averages in this round, bit for bit as torch would compute
        them in this thread. None if they might differ.
        """
        wait(self._known)
        wanted = torch.tensor([torch.get_num_threads(), order], dtype=torch.float32, device="cpu")
        if not bool((self._norms[self._slots :].view(self._ranks, 2) == wanted).all()):
            return None
        return self._norms[[slot.place for slot in slots]]


class Phases:
    """Rounds of a module in two phases, under one decision. `order` has the places of `blocks` in the order of
    reduction, and `gathers` in the order of gathering.
    """

    def __init__(
        self,
        issuer: Issuer,
        blocks: Sequence[ArenaBlock],
        order: Sequence[int],
        gathers: Sequence[int],
        rank: int,
        ranks: int,
    ) -> None:
        self._issuer = issuer
        self._rank, self._ranks = rank, ranks
        self._blocks = blocks
        self._order, self._gathers = order, gathers
        self.reduces: dict[ArenaBlock, JointOperation] = {}
        """First operation of each block's reduction in this round; made ready once the block is complete."""
        self.gatherings: dict[ArenaBlock, JointOperation] = {}
        """Gathering of each block in this round. When it ends, the block has arrived."""


class TwoPhases(Phases):
    """Rounds of two ranks, whose sums have the bits of torch's. `owners` are those of the gradients."""

    def __init__(
        self,
        issuer: Issuer,
        slots: Sequence[Slot],
        blocks: Sequence[ArenaBlock],
        owners: Sequence[int],
        order: Sequence[int],
        gathers: Sequence[int],
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__(issuer, blocks, order, gathers, rank, ranks)
        self._owners = {block: owners[block.slots[0].place] for block in blocks}
        self.norms = OwnNorms(issuer, slots, owners, rank, ranks)

    def operations(self, norm_order: float = NORM) -> list[JointOperation]:
        """Return a round's operations in order. Its norms are of this order, which may differ between ranks."""
        known = self.norms.begin(norm_order)
        self.gatherings = {block: self._gathering(block) for block in self._blocks}
        self.reduces = {block: self._reduction(block) for block in self._blocks}
        reduces = [self.reduces[self._blocks[place]] for place in self._order]
        return [*reduces, known, *(self.gatherings[self._blocks[place]] for place in self._gathers)]

    def _reduction(self, block: ArenaBlock) -> JointOperation:
        """Return the operation that sums a block over all ranks, at its owner."""
        owner, data = self._owners[block], block.data
        received: list[torch.Tensor] = []
        own = data.numel() if owner == self._rank else 0

        def start() -> Any:
            received.append(data.new_empty(own * self._ranks))
            sends = [data.numel() if rank == owner else 0 for rank in range(self._ranks)]
            return self._issuer.groups.all_to_all(received[0], data, [own] * self._ranks, sends, owner)

        def then() -> None:
            from_all = received.pop()
            if own:
                with torch.no_grad():
                    first, *others = from_all.view(self._ranks, own)
                    data.copy_(first)
                    for other in others:
                        data.add_(other)
            self.norms.reduced(block)
            self._issuer.ready(self.gatherings[block])

        return JointOperation(start, block.id, data.nbytes // 2, then, Phase.REDUCE)

    def _gathering(self, block: ArenaBlock) -> JointOperation:
        """Return the operation that copies a block from its owner to all ranks."""
        owner, data = self._owners[block], block.data
        return JointOperation(
            lambda: self._issuer.groups.broadcast(data, owner, owner),
            block.id,
            data.nbytes // 2,
            None,
            Phase.GATHER,
        )
