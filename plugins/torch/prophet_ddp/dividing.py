"""Rounds of one module in two phases: whether it may have them, who owns what, and the phases in force.

Rule of this file: decisions that are alike on all ranks. phases.py explains the two phases, and has their operations.
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

    def division(self, cut: Cut, sizes: Sequence[int]) -> Division:
        """Return how two phases would divide this cut, for gradients of these sizes (bytes)."""
        return divide(cut, sizes, self._ranks) if self._ranks <= MOST_EXACT else Division(cut)

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

            owners, ranks = division.owners, (self._rank, self._ranks)
            norms = Norms(self._issuer, arena.slots, arena.blocks, blocks, owners, *ranks)
            self.phases = Phases(self._issuer, norms, arena.blocks, owners, decision, *ranks)
