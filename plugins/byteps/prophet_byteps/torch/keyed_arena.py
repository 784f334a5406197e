"""Blocks as BytePS's tensors: their names and keys.

Rule of this file: BytePS's demands on a block that travels. Memory and rounds are in
prophet_scheduler/frontends/torch/arena.py.

Each block has two keys and uses them in turn (docs/decisions/two-keys-a-gradient.md). BytePS numbers tensors in the
order in which they are declared, and workers must number alike. So an optimizer declares all names that it may use when
the program wraps it, and a new block takes the next free ones (docs/decisions/keys-of-blocks.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from prophet_byteps.torch.keys import Engine
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, blocks_of
from prophet_scheduler.frontends.torch.arena import Arena, ArenaBlock
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Streams

MOST_NAMES = 16_384
"""Maximum names of one optimizer. BytePS can number 65,536 tensors. It maps a file for each key, and Linux allows a
process 65,530 maps. For each new name it searches all others: this many take 0.6 s, twice as many take 4 s."""
_FINE_BYTES, _COARSE_BYTES, _COARSE_CUTS = 128 * 1024, 512 * 1024, 8
_COARSEST = Cut.uniform(MOST_BLOCK_BYTES)


def names_reserved(sizes: Sequence[int]) -> int:
    """Return the number of names to declare for an optimizer with gradients of these bytes, if its cut may change.

    They suffice for one cut into blocks of 128 KiB and eight into blocks of 512 KiB, unless MOST_NAMES is less. The
    number depends only on the sizes, so a worker that joins later computes the same.
    """
    fine, coarse = (sum(sizes) // size + len(sizes) for size in (_FINE_BYTES, _COARSE_BYTES))
    return min(MOST_NAMES, 2 * (fine + _COARSE_CUTS * coarse))


def declare_names(
    engine: Engine, number: int, sizes: Sequence[int], kinds: Sequence[Hashable | None], fixed: Cut | None
) -> list[str]:
    """Declare and return the names that blocks of optimizer `number` may need: those of the `fixed` cut, or as many as
    are reserved for cuts that change, and at least those of the coarsest cut.

    All workers must call it at the same point of the program. Gradients have these sizes and kinds.
    """
    wanted = names_reserved(sizes) if fixed is None else min(MOST_NAMES, 2 * len(blocks_of(sizes, kinds, fixed)))
    count = max(engine.take_names(wanted), 2 * len(blocks_of(sizes, kinds, _COARSEST)))
    names = [f"prophet.block.{number}.{place}" for place in range(count)]
    for name in names:
        engine.bps.declare(name)
    return names


@dataclass(eq=False)
class KeyedBlock(ArenaBlock):
    """A block with two names, used in turn. Its priority in BytePS is -(id + 1)."""

    names: tuple[str, str] = ("", "")
    rounds: int = 0


class KeyedArena(Arena):
    """The gradients of one optimizer, whose blocks have these `names` and ids from `first_id` on."""

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        engine: Engine,
        names: Sequence[str],
        first_id: int,
        streams: Callable[[Any], Streams],
        half: torch.dtype | None = None,
    ) -> None:
        super().__init__(slots, fusion, streams, first_id, engine.pins_memory, half)
        self._engine = engine
        self._names = names
        self._names_used = 0

    def begin(self, cut: Cut) -> bool:
        """Take up the first cut. If there are too few names, take up the coarsest cut instead and return False. BytePS
        still cuts the blocks of a fixed cut into partitions.
        """
        if self.recut(cut):
            return True
        self.recut(_COARSEST)
        return False

    def why_not(self, cut: Cut) -> str:
        """Return why this cut is impossible, in a few words, the same on all workers; "" if it is possible."""
        missing = 2 * self.new_blocks(cut) - (len(self._names) - self._names_used)
        return f"it takes {missing} more names than the job declared in BytePS" if missing > 0 else ""

    def restart(self) -> None:
        self._names_used = 0
        super().restart()

    def _block(self, data: torch.Tensor, slots: tuple[Slot, ...]) -> ArenaBlock:
        return KeyedBlock(data, slots)

    def _accept(self, new: Sequence[ArenaBlock]) -> bool:
        """Give names to new blocks in forward order: first every block's first name, then every block's second. Return
        False if there are too few. BytePS assigns tensors to servers by number, so one round's are consecutive.
        """
        names = self._names[self._names_used : self._names_used + 2 * len(new)]
        if len(names) < 2 * len(new):
            return False
        self._names_used += len(names)
        for block, name, other in zip(new, names, names[len(new) :], strict=False):
            assert isinstance(block, KeyedBlock)
            block.names = (name, other)
        return True

    def _send(self, block: ArenaBlock) -> Any:
        assert isinstance(block, KeyedBlock)
        name, new = block.names[block.rounds % 2], block.rounds < 2
        block.rounds += 1
        return self._engine.push(block.data, name, -(block.id + 1), new=new)

    def _back(self, block: ArenaBlock) -> bool:
        return self._engine.arrived(block.flight)
