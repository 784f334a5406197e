"""The cost of going from one arm of a tuner to another: what is expected, and what first times have shown. Pure."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prophet_scheduler.session.tuner import Arm

SLOWED = 2
"""Iterations that a change may slow."""


class Going:
    """Cost of going to arms, in iterations, as expected and as it was seen."""

    def __init__(self) -> None:
        self._current: Hashable = None
        self._each, self._comes = 0.0, 0  # share of the cost in each of the next iterations, and their number
        self.since = SLOWED  # iterations since the job came to the present arm
        self._spent = 0.0  # seen so far, of going to the present arm
        # What first times cost beyond later ones, as a share of the expected, and their number.
        self._dear = self._paid = 1.0

    def cost(self, arm: Arm, known: bool) -> float:
        """Return the expected cost of going to this arm, given the cost of first times so far."""
        return arm.cost + (0.0 if known else arm.first_cost - arm.cost) * self._dear / self._paid

    def iteration(self, arm: Arm, known: bool) -> float:
        """Note an iteration of this arm. Return its share of the cost of going there."""
        came, self._current = self._current not in (None, arm.name), arm.name
        self.since = int(not arm.lasts) if came else self.since + 1
        if came:
            self._each, self._comes = self.cost(arm, known) / max(1, arm.lasts), arm.lasts
            self._spent = 0.0
        share = self._each if self._comes else 0.0
        self._comes = max(0, self._comes - 1)
        return share

    def spent(self, arm: Arm, beyond: float) -> None:
        """Note by how much an iteration that shares the cost exceeded one of the arm's."""
        self._spent += beyond
        if not self._comes:
            self.pay(arm, self._spent)

    def pay(self, arm: Arm, spent: float, share: float = 1.0) -> None:
        """Learn from this share of the cost of going to an arm for the first time."""
        expected = share * (arm.first_cost - arm.cost)
        if expected > 0:
            self._dear += max(0.0, spent - share * arm.cost) / expected
            self._paid += 1
