"""A round in two phases around a ring of ranks, for three or more ranks.

Rule of this file: the operations of such a round, and the norms computed in it. phases.py explains the two phases, and
has those of two ranks, whose sums are torch's to the last bit. With more ranks torch's own sums are rounded in an order
that depends on its buckets. So here a block is divided evenly, and each rank ends its first phase with the sum of one
part.

In each *step* of the first phase a rank sends one part to the next rank, receives another from the previous rank, and
adds its own to that (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). At any time each link carries
one part out and another in. Parts sent straight to their owners compete for links: with four ranks they took 4% to 15%
longer than the wire allows, where a ring takes 1% to 2%. The next block's first step overlaps this block's second. The
second phase is gloo's all-gather, which is a ring too.

Norms are combined from those of the parts, which ranks exchange. Each rank combines the same numbers in the same order,
so all ranks have the same norms, and clip alike.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from prophet_ddp.events import Phase
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_ddp.phases import Phases, norm_of
from prophet_scheduler.core.cut import Block
from prophet_scheduler.forks import free_in_forks
from prophet_scheduler.frontends.torch.arena import ArenaBlock, Slot
from prophet_scheduler.frontends.torch.clipping import NORM


def _size(count: int, ranks: int) -> int:
    """Return the number of elements of a part; the last parts may have fewer."""
    return -(-count // ranks)


class PartNorms:
    """Norms of all gradients, combined from those of each rank's parts of `blocks`, which ranks exchange. `slots` is
    the number of gradients, and `pieces` are the blocks as their cut makes them.
    """

    def __init__(
        self,
        issuer: Issuer,
        slots: int,
        blocks: Sequence[ArenaBlock],
        pieces: Sequence[Block],
        rank: int,
        ranks: int,
    ) -> None:
        self._issuer = issuer
        self._ranks, self._slots = ranks, slots
        columns = [0] * slots
        self._parts: dict[ArenaBlock, list[tuple[torch.Tensor, int, int]]] = {}
        """Pieces of gradients in this rank's part of each block. Each has the row and the column of its norm; each
        gradient has a row."""
        for block, cut in zip(blocks, pieces, strict=True):
            own = self._parts[block] = []
            size = _size(block.data.numel(), ranks)
            first, last = rank * size, (rank + 1) * size
            begin = 0
            for slot, piece in zip(block.slots, cut.pieces, strict=True):
                end = begin + (piece.stop - piece.start) // block.data.element_size()
                part = block.data[max(begin, first) : min(end, last)]
                if len(part):
                    own.append((part, slot.place, columns[slot.place]))
                    columns[slot.place] += 1
                begin = end
        self._columns = max(1, *columns)
        self._lock = free_in_forks(threading.Lock())
        self._without_norm = 0
        """Number of blocks still to be summed."""
        self._order = NORM
        self._norms = self._told = torch.zeros(0)
        self._known = JointOperation(lambda: None)

    def begin(self, order: float) -> JointOperation:
        """Begin a round with norms of this order. Return the operation that exchanges them."""
        self._order = order
        self._norms = torch.zeros(self._slots, self._columns, dtype=torch.float64, device="cpu")
        told = self._told = torch.zeros(self._ranks, self._slots + 1, dtype=torch.float64, device="cpu")
        self._known = JointOperation(lambda: self._issuer.groups.all_gather(told.view(-1), self._own()))
        self._without_norm = len(self._parts)
        self._known.ready = not self._parts
        return self._known

    def reduced(self, block: ArenaBlock) -> None:
        """Handle a block once this rank's part is summed, in a thread of torch's."""
        for piece, row, column in self._parts[block]:
            self._norms[row, column] = norm_of(piece, self._order)
        with self._lock:
            self._without_norm -= 1
            all_known = not self._without_norm
        if all_known:
            self._issuer.ready(self._known)

    def _own(self) -> torch.Tensor:
        """Return the norm of this rank's pieces of each gradient, followed by the order of the norms."""
        norms = torch.linalg.vector_norm(self._norms, self._order, dim=1)
        return torch.cat([norms, norms.new_tensor([self._order])])

    def of(self, slots: Sequence[Slot], order: float, wait: Callable[[JointOperation], None]) -> torch.Tensor | None:
        """Return the norms of this order of these gradients' averages in this round, alike on all ranks. None if some
        rank's norms have another order.
        """
        wait(self._known)
        if not bool((self._told[:, -1] == order).all()):
            return None
        norms: torch.Tensor = torch.linalg.vector_norm(self._told[:, :-1], order, dim=0).to(torch.float32)
        return norms[[slot.place for slot in slots]]


class RingPhases(Phases):
    """Rounds around a ring. `pieces` are the `blocks` as their cut makes them; `at_once` operations are in flight."""

    def __init__(
        self,
        issuer: Issuer,
        slots: Sequence[Slot],
        blocks: Sequence[ArenaBlock],
        pieces: Sequence[Block],
        order: Sequence[int],
        gathers: Sequence[int],
        at_once: int,
        rank: int,
        ranks: int,
    ) -> None:
        super().__init__(issuer, blocks, order, gathers, rank, ranks)
        self._lag = max(1, at_once // (ranks - 1))
        self.norms = PartNorms(issuer, len(slots), blocks, pieces, rank, ranks)

    def _part(self, data: torch.Tensor, rank: int) -> torch.Tensor:
        size, rank = _size(data.numel(), self._ranks), rank % self._ranks
        return data[rank * size : (rank + 1) * size]

    def operations(self, norm_order: float = NORM) -> list[JointOperation]:
        """Return a round's operations in order. Its norms are of this order, which may differ between ranks."""
        known = self.norms.begin(norm_order)
        self.gatherings = {block: self._gathering(block) for block in self._blocks}
        steps = {block: self._steps(block) for block in self._blocks}
        self.reduces = {block: first for block, (first, *_) in steps.items()}
        gathers = [self.gatherings[self._blocks[place]] for place in self._gathers]
        due = sorted(self._due(), key=lambda row: row[2])
        return [*(steps[self._blocks[place]][step] for place, step, _ in due), known, *gathers]

    def _due(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Yield each block's place, each of its steps, and when that step is due: tuples that rise in the sequence.

        If steps of several blocks are due, the oldest block goes first: newer ones may still be generated.
        """
        for number, place in enumerate(self._order):
            for step in range(self._ranks - 1):
                yield place, step, (number + step * self._lag, -step)

    def _steps(self, block: ArenaBlock) -> list[JointOperation]:
        """Return the operations that leave the sum of each part at one rank. Each makes the next one ready.

        In the log the last one stands for all.
        """
        steps: list[JointOperation] = []
        after = functools.partial(self._reduced, block)
        for step in reversed(range(self._ranks - 1)):
            size_bytes = 0 if steps else block.data.nbytes // 2
            start, then = self._step(block.data, step, after)
            steps.insert(0, JointOperation(start, block.id, size_bytes, then, Phase.REDUCE))
            after = functools.partial(self._issuer.ready, steps[0])
        return steps

    def _step(
        self, data: torch.Tensor, step: int, after: Callable[[], None]
    ) -> tuple[Callable[[], Any], Callable[[], None]]:
        """Return the functions that start such an operation and handle its end; the latter calls `after`."""
        before, next_ = (self._rank - 1) % self._ranks, (self._rank + 1) % self._ranks
        sent = self._part(data, before - step)
        summed = self._part(data, before - step - 1)
        received: list[torch.Tensor] = []

        def start() -> Any:
            received.append(torch.empty_like(summed))
            receives = [len(summed) * (rank == before) for rank in range(self._ranks)]
            sends = [len(sent) * (rank == next_) for rank in range(self._ranks)]
            return self._issuer.groups.all_to_all(received[0], sent, receives, sends)

        def then() -> None:
            with torch.no_grad():
                summed.add_(received.pop())
            after()

        return start, then

    def _gathering(self, block: ArenaBlock) -> JointOperation:
        """Return the operation that copies each rank's part of a block to all ranks."""
        data, own = block.data, self._part(block.data, self._rank)
        size = _size(data.numel(), self._ranks)
        gathered: list[torch.Tensor] = []

        def start() -> Any:
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
