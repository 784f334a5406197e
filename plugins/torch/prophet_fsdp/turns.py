"""Turns of FSDP2's own collectives, by which Prophet is kept only where it is not slower.

Rule of this file: pure. It counts a model's iterations, which are the same on all ranks, and decides whose collectives
the next one uses. Times are seconds of the steady clock.

Prophet begins. Then turns alternate, and after each turn of FSDP2's own the ranks exchange what they measured. All of
them decide by the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

FIRST = 5
"""Iterations at the start of a job that are not measured."""
BEFORE = 16
"""Iterations before the first turn of FSDP2's own collectives."""
LENGTH = 4
"""Iterations of a turn. Its first one is not measured: what the turn before has left is under way in it."""
TURNS = 3
"""Most turns of FSDP2's own collectives."""


class Turns:
    """Turns of one model. `possible`: FSDP2's own collectives give the same averages."""

    def __init__(self, possible: bool) -> None:
        self.own = False
        """True while FSDP2's own collectives have their turn, or have the model for good."""
        self.settled = not possible
        """True once one of the two has the model for good."""
        self._ended = 0
        self._last_s = 0.0
        self._took_s: dict[bool, list[float]] = {False: [], True: []}
        """Durations of iterations, under Prophet and with FSDP2's own collectives."""

    def iteration_ends(self, now: float) -> bool:
        """Note that an iteration has ended. Return True if the ranks are to exchange `measured` and decide."""
        self._ended += 1
        since_s, self._last_s = self._last_s, now
        if self.settled:
            return False
        turn, place = divmod(self._ended - 1 - BEFORE, LENGTH)
        if self._ended > FIRST and place != 0:
            self._took_s[self.own].append(now - since_s)
        if place != LENGTH - 1 or turn < -1:
            return False
        decides, self.own = self.own, not self.own
        return decides

    @property
    def measured(self) -> tuple[float, ...]:
        """Medians of iterations with FSDP2's own collectives and under Prophet, and what they show: 1.0 if each of
        the former was the faster, -1.0 if each was the slower, else 0.0.
        """
        own, late = self._took_s[True], self._took_s[False]
        return median(own), median(late), float(max(own) < min(late)) - float(min(own) > max(late))

    def decide(self, measured: Sequence[Sequence[float]]) -> None:
        """Decide by what each rank has measured, if it is clear, or after the last turn."""
        own_s, late_s, shown = (sum(column) for column in zip(*measured, strict=True))
        last = self._ended >= BEFORE + (2 * TURNS - 1) * LENGTH
        if last or abs(shown) == len(measured):
            self.settled, self.own = True, own_s < late_s

    @property
    def words(self) -> str:
        """Say what FSDP2 takes without Prophet, at the end of a job."""
        own_s = self._took_s[True]
        if self.settled and self.own:
            return "FSDP2 then went on without Prophet, which was faster"
        if not own_s:
            return "not known what FSDP2 takes without Prophet"
        return f"FSDP2 without Prophet took {median(own_s):.3g} s (median of {len(own_s)} iterations)"
