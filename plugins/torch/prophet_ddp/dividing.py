"""Rounds of one module in two phases: whether it may have them, what they need, and the phases in force.

Rule of this file: decisions that are alike on all ranks. phases.py and ring.py have the operations of such rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from prophet_ddp.issuer import Issuer, JointOperation
from prophet_ddp.terms import MOST_EXACT
from prophet_scheduler.frontends.notices import warn_once
from prophet_scheduler.frontends.torch.clipping import NORM

if TYPE_CHECKING:
    from prophet_ddp.arena import DdpArena
    from prophet_ddp.control import Decision
    from prophet_ddp.phases import Division, TwoPhases
    from prophet_ddp.ring import RingPhases
    from prophet_scheduler.core.cut import Block, Cut
    from prophet_scheduler.frontends.torch.arena import Slot
    from prophet_scheduler.learn.barrier import BarrierWatch


def _import_phases() -> None:
    """Import phases.py late: few jobs need it, and the import takes a file descriptor."""
    from prophet_ddp import phases, ring  # noqa: F401


class Dividing:
    """Two phases of one module. `possible`: the module may have them. `asks` learns if iterations ask for norms."""

    def __init__(self, issuer: Issuer, rank: int, ranks: int, asks: BarrierWatch, possible: bool) -> None:
        self._issuer = issuer
        self._asks = asks
        self._rank, self._ranks = rank, ranks
        self.possible = possible
        self.phases: TwoPhases | RingPhases | None = None
        """Phases of rounds under the decision in force; None if they have one phase."""
        self.norm_order = NORM
        """Order of the norms that the program asked for last."""
        self._asked = self._connected = False

    def asked(self, order: float) -> None:
        """Record that the program asks for norms of this order."""
        self._asked, self.norm_order = True, order

    def iterated(self) -> None:
        """Record the end of an iteration."""
        self._asks.iteration(self._asked)
        self._asked = False

    def division(self, cut: Cut, sizes: Sequence[int]) -> Division:
        """Return how two phases would divide this cut, for gradients of these sizes (bytes)."""
        from prophet_ddp.phases import Division, divide  # Few jobs need it.

        return divide(cut, sizes, self._ranks) if self._ranks <= MOST_EXACT else Division(cut)

    def prepared(self, label: str, wait: Callable[[JointOperation], None]) -> bool:
        """Return True if rounds can have two phases, after connecting on first use. All ranks can, or none.

        `label` names the module. `wait(operation)` returns once the operation has ended.
        """
        if self.possible and not self._connected:
            count = self._ranks if self._ranks <= MOST_EXACT else 0
            why = self._issuer.connect_apart(self._rank, count, _import_phases, wait)
            self.possible = self._connected = not why
            if why:
                warn_once(f"{label} goes on without rounds in two phases: {why}")
        return self._connected

    def take_up(
        self, decision: Decision, division: Division | None, arena: DdpArena, slots: Sequence[Slot], blocks: list[Block]
    ) -> None:
        """Set up the phases of a decision; none without a `division`. `blocks` are those of the division's cut."""
        self.phases = None
        if division is None:
            return
        from prophet_ddp.phases import TwoPhases
        from prophet_ddp.ring import RingPhases

        orders, ranks = (decision.order, decision.gathers), (self._rank, self._ranks)
        if division.owners:
            self.phases = TwoPhases(self._issuer, slots, arena.blocks, division.owners, *orders, *ranks)
        else:
            self.phases = RingPhases(self._issuer, slots, arena.blocks, blocks, *orders, decision.at_once, *ranks)
