"""A round in two phases: each part of a gradient is summed by the rank that owns it, and the sums are gathered later.

Rule of this file: the operations of such a round, and the norms computed in it. dividing.py says who owns what,
agent.py decides when a job has such rounds, and issuer.py orders operations. Reasons: docs/decisions/two-phases.md.

First all blocks are *reduced*, in the order in which backward generates them. Then ranks exchange norms, so a program
that clips by the total norm can go on. Then all blocks are *gathered*, in the order in which the next forward pass
needs them, and while it runs. (ZeRO, Rajbhandari et al. 2020, section 5, sends the same halves.) Everything is sent as
soon as possible, whether or not the program reads it or clips, so nothing here waits for the program.

Of two ranks one owns each gradient, and so each block: a sum of two has the bits of an all-reduce, and a whole gradient
has the norm that torch computes. The largest gradient has no owner, but is all-reduced. Data to and from each owner has
connections of its own.

With more ranks a block is divided evenly, and each rank ends its first phase with the sum of one part. In each *step* a
rank sends one part to the next rank, receives another from the previous rank, and adds its own to that (Patarasu and
Yuan, "Bandwidth optimal all-reduce algorithms", 2009). The next block's first step overlaps this block's second. The
second phase is gloo's all-gather, which is a ring too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prophet_ddp.control import Decision
from prophet_ddp.dividing import EVENLY, MOST_EXACT, WHOLE, Division
from prophet_ddp.events import Phase
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import Block
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.arena import ArenaBlock
from prophet_scheduler.frontends.torch.clipping import NORM
from prophet_scheduler.frontends.torch.slot import Slot


def norm_of(sums: torch.Tensor, order: float) -> torch.Tensor:
    """Return the norm of sums as the program gets it, in single precision, even if they travelled in half."""
    norm: torch.Tensor = torch.linalg.vector_norm(sums.to(torch.float32), order)
    return norm


def _size(count: int, ranks: int) -> int:
    """Return the number of elements of a part; the last parts may have fewer."""
    return -(-count // ranks)


@dataclass(eq=False)
class _Part:
    """Memory of which this rank computes the norm, once its blocks are summed: a gradient's, or a part of that. `row`
    is the gradient's, and `column` the part's among those of the gradient that this rank owns.
    """

    data: torch.Tensor
    row: int
    column: int
    blocks: int = 1
    left: int = 0
    """Number of its blocks still to be summed in this round."""


class Norms:
    """Norms of all gradients. Each rank computes those of what it owns, and ranks exchange them. `owners` are those of
    the gradients (dividing.py). `pieces` are the `blocks` as their cut makes them.

    If each gradient has one owner, its norm has the bits that torch would compute. Otherwise each rank combines the
    same numbers in the same order, so all ranks have the same norms, and clip alike.
    """

    def __init__(
        self,
        issuer: Issuer,
        slots: Sequence[Slot],
        blocks: Sequence[ArenaBlock],
        pieces: Sequence[Block],
        owners: Sequence[int],
        rank: int,
        ranks: int,
    ) -> None:
        self._issuer = issuer
        self._ranks, self._slots = ranks, len(slots)
        self._exact = ranks <= MOST_EXACT
        self._parts: dict[ArenaBlock, list[_Part]] = {block: [] for block in blocks}
        """Parts that this rank owns, by each block with something of them."""
        columns = [0] * len(slots)
        # The view is still summed once the module is dropped.
        for slot, owner in zip(slots, owners, strict=True) if self._exact else ():
            part = _Part(slot.view, slot.place, 0, len(slot.blocks))
            for block in slot.blocks if rank == (0 if owner == WHOLE else owner) else ():
                self._parts[block].append(part)
        for block, cut in () if self._exact else zip(blocks, pieces, strict=True):
            size, begin = _size(block.data.numel(), ranks), 0
            for slot, piece in zip(block.slots, cut.pieces, strict=True):
                end = begin + (piece.stop - piece.start) // block.data.element_size()
                data = block.data[max(begin, rank * size) : min(end, (rank + 1) * size)]
                if len(data):
                    self._parts[block].append(_Part(data, slot.place, columns[slot.place]))
                    columns[slot.place] += 1
                begin = end
        self._columns = max(1, *columns)
        self._lock = free_in_forks(threading.Lock())
        self._without_norm = 0
        """Number of parts still to be summed."""
        self._order = NORM
        self._threads = 0
        self._norms = self._told = torch.zeros(0)
        self._known = JointOperation(lambda: None)

    def begin(self, order: float) -> JointOperation:
        """Begin a round with norms of this order. Return the operation that exchanges them."""
        self._order, self._threads = order, torch.get_num_threads()
        self._norms = torch.zeros(self._slots, self._columns, dtype=torch.float64, device="cpu")
        told = self._told = torch.zeros(self._ranks, self._slots + 2, dtype=torch.float64, device="cpu")
        self._known = JointOperation(lambda: self._issuer.groups.all_gather(told.view(-1), self._own()))
        parts = {part for parts in self._parts.values() for part in parts}
        for part in parts:
            part.left = part.blocks
        self._without_norm = len(parts)
        self._known.ready = not parts
        return self._known

    def reduced(self, block: ArenaBlock) -> None:
        """Handle a block once what this rank owns of it is summed, in a thread of torch's."""
        with self._lock:
            for part in self._parts[block]:
                part.left -= 1
            summed = [part for part in self._parts[block] if not part.left]
        for part in summed:
            self._norms[part.row, part.column] = norm_of(part.data, self._order)
            self._threads = torch.get_num_threads()
        with self._lock:
            self._without_norm -= len(summed)
            all_known = bool(summed) and not self._without_norm
        if all_known:
            self._issuer.ready(self._known)

    def _own(self) -> torch.Tensor:
        """Return the norm of what this rank owns of each gradient, followed by how it was computed."""
        norms = self._norms[:, 0] if self._exact else torch.linalg.vector_norm(self._norms, self._order, dim=1)
        return torch.cat([norms, norms.new_tensor([self._order, self._threads])])

    def of(self, slots: Sequence[Slot], order: float, wait: Callable[[JointOperation], None]) -> torch.Tensor | None:
        """Return the norms of this order of these gradients' averages in this round: of gradients with one owner, bit
        for bit as torch would compute them in this thread. None if they might differ, or if some rank's norms have
        another order.
        """
        wait(self._known)
        told, how = self._told[:, :-2], self._told[:, -2:]
        # torch splits a norm among threads, so its bits depend on their number.
        if not bool((how[:, 0] == order).all()) or (self._exact and bool((how[:, 1] != torch.get_num_threads()).any())):
            return None
        norms: torch.Tensor = told.sum(0) if self._exact else torch.linalg.vector_norm(told, order, dim=0)
        return norms.to(torch.float32)[[slot.place for slot in slots]]


class Phases:
    """Rounds of a module in two phases, under one `decision`. `pieces` are the `blocks` as the division's cut makes
    them.
    """

    def __init__(
        self,
        issuer: Issuer,
        slots: Sequence[Slot],
        blocks: Sequence[ArenaBlock],
        pieces: Sequence[Block],
        division: Division,
        decision: Decision,
        rank: int,
        ranks: int,
    ) -> None:
        self._issuer = issuer
        self._rank, self._ranks = rank, ranks
        self._blocks = blocks
        self._decision = decision
        self._owners = dict(zip(blocks, map(division.owner, pieces), strict=True))
        self.norms = Norms(issuer, slots, blocks, pieces, division.owners, rank, ranks)
        self.reduces: dict[ArenaBlock, JointOperation] = {}
        """First operation of each block's reduction in this round; made ready once the block is complete."""
        self.gatherings: dict[ArenaBlock, JointOperation] = {}
        """Gathering of each block in this round. When it ends, the block has arrived."""

    def _part(self, block: ArenaBlock, rank: int) -> torch.Tensor:
        """Return the part of a block that a rank owns, all of it or nothing if it has one owner."""
        rank %= self._ranks
        owner = self._owners[block]
        if owner != EVENLY:
            return block.data if rank == owner else block.data[:0]
        size = _size(block.data.numel(), self._ranks)
        return block.data[rank * size : (rank + 1) * size]

    def _apart(self, block: ArenaBlock) -> int | None:
        """Return the owner whose connections the block uses; None if ranks own it evenly."""
        return None if self._owners[block] == EVENLY else self._owners[block]

    def operations(self, norm_order: float = NORM) -> list[JointOperation]:
        """Return a round's operations in order. Its norms are of this order, which may differ between ranks."""
        known = self.norms.begin(norm_order)
        whole = {block: self._all_reduce(block) for block, owner in self._owners.items() if owner == WHOLE}
        self.gatherings = {block: whole.get(block) or self._gathering(block) for block in self._blocks}
        steps = {block: [whole[block]] if block in whole else self._steps(block) for block in self._blocks}
        self.reduces = {block: first for block, (first, *_) in steps.items()}
        gathered = (self._blocks[place] for place in self._decision.gathers)
        gathers = [self.gatherings[block] for block in gathered if block not in whole]
        return [*self._by_due_time([steps[self._blocks[place]] for place in self._decision.order]), known, *gathers]

    def _by_due_time(self, reductions: Sequence[list[JointOperation]]) -> list[JointOperation]:
        """Return the steps of these reductions in the sequence in which they are due.

        If steps of several blocks are due, the oldest block goes first: newer ones may still be generated.
        """
        lag = max(1, self._decision.at_once // (self._ranks - 1))
        due = [
            (number + step * lag, -step, operation)
            for number, steps in enumerate(reductions)
            for step, operation in enumerate(steps)
        ]
        return [operation for *_, operation in sorted(due, key=lambda row: row[:2])]

    def _all_reduce(self, block: ArenaBlock) -> JointOperation:
        """Return the operation that brings the block's sum to all ranks."""
        start = functools.partial(self._issuer.groups.all_reduce, block.data)
        return JointOperation(start, block.id, block.data.nbytes, functools.partial(self.norms.reduced, block))

    def _steps(self, block: ArenaBlock) -> list[JointOperation]:
        """Return the operations that leave the sum of each part at its owner. Each makes the next one ready.

        In the log the last one stands for all.
        """
        steps: list[JointOperation] = []
        after = functools.partial(self._reduced, block)
        for step in reversed(range(self._ranks - 1)):
            size_bytes = 0 if steps else block.data.nbytes // 2
            start, then = self._step(block, step, after)
            steps.insert(0, JointOperation(start, block.id, size_bytes, then, Phase.REDUCE))
            after = functools.partial(self._issuer.ready, steps[0])
        return steps

    def _step(
        self, block: ArenaBlock, step: int, after: Callable[[], None]
    ) -> tuple[Callable[[], Any], Callable[[], None]]:
        """Return the functions that start such an operation and handle its end; the latter calls `after`."""
        before, next_ = (self._rank - 1) % self._ranks, (self._rank + 1) % self._ranks
        sent = self._part(block, before - step)
        summed = self._part(block, before - step - 1)
        received: list[torch.Tensor] = []

        def start() -> Any:
            received.append(torch.empty_like(summed))
            receives = [len(summed) * (rank == before) for rank in range(self._ranks)]
            sends = [len(sent) * (rank == next_) for rank in range(self._ranks)]
            return self._issuer.groups.all_to_all(received[0], sent, receives, sends, self._apart(block))

        def then() -> None:
            with torch.no_grad():
                summed.add_(received.pop())
            after()

        return start, then

    def _gathering(self, block: ArenaBlock) -> JointOperation:
        """Return the operation that copies each part of a block from its owner to all ranks."""
        data, own, owner = block.data, self._part(block, self._rank), self._apart(block)
        size = _size(data.numel(), self._ranks)
        gathered: list[torch.Tensor] = []

        def start() -> Any:
            if owner is not None:
                return self._issuer.groups.broadcast(data, owner, owner)
            if data.numel() == size * self._ranks:
                return self._issuer.groups.all_gather(data, own)
            # An all-gather needs parts of one size.
            padded = torch.cat([own, own.new_zeros(size - len(own))])
            gathered.append(data.new_empty(size * self._ranks))
            return self._issuer.groups.all_gather(gathered[0], padded)

        def then() -> None:
            if gathered:
                with torch.no_grad():
                    data.copy_(gathered.pop()[: data.numel()])

        return JointOperation(start, block.id, data.nbytes // 2, then, Phase.GATHER)

    def _reduced(self, block: ArenaBlock) -> None:
        """Handle a block once this rank's part is summed, in a thread of torch's."""
        self.norms.reduced(block)
        self._issuer.ready(self.gatherings[block])
