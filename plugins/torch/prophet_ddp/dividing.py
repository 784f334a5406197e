"""Rounds of one module in two phases: whether it may have them, who owns what, and the phases in force.

Rule of this file: decisions that are alike on all ranks. phases.py explains the two phases, and has their
operations. phase_times.py predicts them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.core.cut import UNIT_BYTES, Block, Borders, Cut, arena_places
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch.clipping import NORM

if TYPE_CHECKING:
    from prophet_ddp.arena import DdpArena
    from prophet_ddp.control import Decision
    from prophet_ddp.phases import Phases
    from prophet_scheduler.learn.barrier import BarrierWatch

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


class Dividing:
    """Two phases of one module. `possible`: the module may have them. `asks` learns if iterations ask for norms."""

    def __init__(self, issuer: Issuer, rank: int, ranks: int, asks: BarrierWatch, possible: bool) -> None:
        self._issuer = issuer
        self._asks = asks
        self._rank, self._ranks = rank, ranks
        self.possible = possible
        self.phases: Phases | None = None
        """Phases of rounds under the decision in force; None if they have one phase."""
        self.norm_order = NORM
        """Order of the norms that the program asked for last."""
        self._asked = self._connected = False

    def asked(self, order: float) -> None:
        """Record that the program asks for norms of this order."""
        self._asked, self.norm_order = True, order

    def iterated(self) -> None:
        self._asks.iteration(self._asked)
        self._asked = False

    def prepared(self, label: str, wait: Callable[[JointOperation], None]) -> bool:
        """Return True if rounds can have two phases, after connecting on first use. All ranks can, or none.

        `label` names the module. `wait(operation)` returns once the operation has ended.
        """
        if self.possible and not self._connected:
            count = self._ranks if self._ranks <= MOST_EXACT else 0
            # phases.py is imported late: few jobs need it. The import takes a file descriptor.
            first = functools.partial(importlib.import_module, "prophet_ddp.phases")
            why = self._issuer.connect_apart(self._rank, count, first, wait)
            self.possible = self._connected = not why
            if why:
                warn_once(f"{label} goes on without rounds in two phases: {why}")
        return self._connected

    def take_up(self, decision: Decision, division: Division | None, arena: DdpArena, blocks: Sequence[Block]) -> None:
        """Set up the phases of a decision; none without a `division`. `blocks` are those of the division's cut."""
        self.phases = None
        if division is not None:
            from prophet_ddp.phases import Norms, Phases

            ranks = self._rank, self._ranks
            norms = Norms(self._issuer, arena.slots, arena.blocks, blocks, division.owners, *ranks)
            owners = [division.owner(block) for block in blocks]
            self.phases = Phases(self._issuer, norms, arena.blocks, owners, decision, *ranks)
