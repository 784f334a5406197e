"""Division of gradients among ranks for rounds in two phases: who owns what.

Rule of this file: pure, and alike on all ranks. phases.py explains the two phases, and sequencing.py predicts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prophet_scheduler.core.cut import UNIT_BYTES, Block, Borders, Cut, arena_places

MOST_EXACT = 2
"""Maximum number of ranks whose sums are the same in any order. Up to it each gradient has one owner in two phases,
which tells its norm to the last bit. With more ranks all own an equal part of each block (phases.py)."""
WHOLE, EVENLY = -1, -2
"""Owners of gradients that the first phase all-reduces, and of those whose blocks all ranks own in equal parts."""


@dataclass(frozen=True)
class Division:
    """Blocks, and the owner of each gradient: a rank, WHOLE or EVENLY."""

    cut: Cut
    owners: tuple[int, ...]

    def owner(self, block: Block) -> int:
        """Return the owner of a block of the cut, that of its first gradient."""
        return self.owners[block.pieces[0].gradient]


def divide(cut: Cut, sizes: Sequence[int], ranks: int) -> Division:
    """Divide gradients of these sizes (bytes, as they lie in the arena) among ranks, in blocks of about the cut's size.

    With more than MOST_EXACT ranks, all ranks own each block evenly. Otherwise neighbours that are smaller than a block
    are grouped. The largest group is all-reduced: with one owner it would use one link alone, first in one phase and
    then in the other. The next largest group goes to the rank with the smallest load (Graham 1969, LPT). Sizes with the
    same number of binary digits count as equal: such groups go to one rank after another, in the order of generation.
    The result is the same on all ranks.
    """
    if ranks > MOST_EXACT:
        return Division(cut, (EVENLY,) * len(sizes))
    places = arena_places(sizes)
    groups: list[tuple[int, int]] = []
    first = 0
    for gradient in range(len(sizes)):
        whole = places[gradient + 1] - places[first] >= cut.block_bytes_at(places[first])
        if whole or gradient + 1 == len(sizes):
            groups.append((first, gradient + 1))
            first = gradient + 1
    largest = max(groups, key=lambda group: places[group[1]] - places[group[0]])
    loads = [0] * ranks
    owners = [WHOLE] * len(sizes)
    borders: list[int] = []
    for first, last in sorted(
        groups, key=lambda group: (-(places[group[1]] - places[group[0]]).bit_length(), -group[0])
    ):
        size_bytes = places[last] - places[first]
        if (first, last) != largest:
            owner = min(range(ranks), key=loads.__getitem__)
            loads[owner] += size_bytes
            owners[first:last] = [owner] * (last - first)
        count = max(1, round(size_bytes / cut.block_bytes_at(places[first])))
        borders += [places[first] + size_bytes * part // count // UNIT_BYTES * UNIT_BYTES for part in range(count)]
    return Division(Borders.at(borders, places[-1]), tuple(owners))
