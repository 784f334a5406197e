"""A round in two phases around a ring of ranks, for three ranks and more.

Rule of this file: the operations of such a round, and the norms that come of them. phases.py says what two phases are
for, and has those of two ranks, whose sums are torch's to the last bit. With more ranks torch's own sums are rounded in
an order that depends on its buckets. So here a block is divided evenly, and each rank ends its first phase with the sum
of one part.

In each *step* of the first phase a rank sends one part to the next rank and gets another from the one before, to which
it adds its own (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). Each link carries one part out and
another in at any time. Parts that go straight to all their owners compete for links, and with four ranks took 4% to 15%
longer than what the wire allows, where a ring takes 1% to 2%. The next block's first step is under way beside this
block's second. The second phase is gloo's all-gather, a ring too.

Norms are those of the parts, which all ranks tell each other. Each rank combines the same numbers in the same order, so
all have the same norms, and clip alike.
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
    """Return the elements of a part of so many; the last parts may have fewer."""
    return -(-count // ranks)


class PartNorms:
    """Norms of all gradients from those of each rank's parts of `blocks`, which all ranks tell each other. `pieces` are
    the blocks as their cut makes them, of so many gradients.
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
        """Pieces of gradients in this rank's part of each block. Each has the row and the column of its norm, in a row
        for each gradient."""
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
        """Blocks still to be summed."""
        self._order = NORM
        self._norms = self._told = torch.zeros(0)
        self._known = JointOperation(lambda: None)

    def begin(self, order: float) -> JointOperation:
        """Begin a round with norms of this order. Returns the operation that tells them."""
        self._order = order
        self._norms = torch.zeros(self._slots, self._columns, dtype=torch.float64, device="cpu")
        told = self._told = torch.zeros(self._ranks, self._slots + 1, dtype=torch.float64, device="cpu")
        self._known = JointOperation(lambda: self._issuer.groups.all_gather(told.view(-1), self._own()))
        self._without_norm = len(self._parts)
        self._known.ready = not self._parts
        return self._known

    def reduced(self, block: ArenaBlock) -> None:
        """Handle a block whose part of this rank is summed, in a thread of torch's."""
        for piece, row, column in self._parts[block]:
            self._norms[row, column] = norm_of(piece, self._order)
        with self._lock:
            self._without_norm -= 1
            all_known = not self._without_norm
        if all_known:
            self._issuer.ready(self._known)

    def _own(self) -> torch.Tensor:
        """Return the norms of all that this rank has of each gradient, and their order."""
        norms = torch.linalg.vector_norm(self._norms, self._order, dim=1)
        return torch.cat([norms, norms.new_tensor([self._order])])

    def of(self, slots: Sequence[Slot], order: float, wait: Callable[[JointOperation], None]) -> torch.Tensor | None:
        """Return the norms of this order of these gradients' averages in this round, the same on all ranks. None if
        some rank has others.
        """
        wait(self._known)
        if not bool((self._told[:, -1] == order).all()):
            return None
        norms: torch.Tensor = torch.linalg.vector_norm(self._told[:, :-1], order, dim=0).to(torch.float32)
        return norms[[slot.place for slot in slots]]


class RingPhases(Phases):
    """Rounds around a ring. `pieces` are the `blocks` as their cut makes them; `at_once` operations are under way."""

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
        """Return a round's operations, in order, with norms of this order, in which ranks may differ."""
        known = self.norms.begin(norm_order)
        self.gatherings = {block: self._gathering(block) for block in self._blocks}
        steps = {block: self._steps(block) for block in self._blocks}
        self.reduces = {block: first for block, (first, *_) in steps.items()}
        gathers = [self.gatherings[self._blocks[place]] for place in self._gathers]
        due = sorted(self._due(), key=lambda row: row[2])
        return [*(steps[self._blocks[place]][step] for place, step, _ in due), known, *gathers]

    def _due(self) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Return the place of each block, each of its steps, and when that is due: tuples that rise in the sequence.

        Older blocks come first where steps of several are due: they are there, and newer ones may still be generated.
        """
        for number, place in enumerate(self._order):
            for step in range(self._ranks - 1):
                yield place, step, (number + step * self._lag, -step)

    def _steps(self, block: ArenaBlock) -> list[JointOperation]:
        """Return the operations that leave the sum of all ranks' parts at each part's rank. Each makes the next ready.

        The last one stands for all in the log.
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
        """Return how such an operation starts, and what is done at its end, `after` included."""
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
        """Return the operation that copies each rank's part of the block to all ranks."""
        data, own = block.data, self._part(block.data, self._rank)
        size = _size(data.numel(), self._ranks)
        gathered: list[torch.Tensor] = []

        def start() -> Any:
            if data.numel() == size * self._ranks:
                return self._issuer.groups.all_gather(data, own)
            # All parts must have one size there.
            padded = torch.cat([own, own.new_zeros(size - len(own))])
            gathered.append(data.new_empty(size * self._ranks))
            return self._issuer.groups.all_gather(gathered[0], padded)

        def then() -> None:
            if gathered:
                with torch.no_grad():
                    data.copy_(gathered.pop()[: data.numel()])

        return JointOperation(start, block.id, data.nbytes // 2, then, Phase.GATHER)

    def _reduced(self, block: ArenaBlock) -> None:
        """Handle a block whose part of this rank is summed, in a thread of torch's."""
        self.norms.reduced(block)
        self._issuer.ready(self.gatherings[block])
