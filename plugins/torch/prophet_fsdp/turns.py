"""Turns of FSDP2's own collectives: Prophet keeps a model only where it is not slower.

Rule of this file: pure. It counts a model's iterations, which are the same on all ranks, and decides whose collectives
the next iteration uses. Times are seconds of a steady clock.

Prophet starts. Then turns alternate. After each measured iteration with FSDP2's own collectives the ranks exchange what
they measured, so all of them decide from the same numbers. A large difference ends the turn at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

FIRST = 5
"""Iterations at the start of a job that are not measured."""
BEFORE = 16
"""Iterations before the first turn of FSDP2's own collectives."""
LENGTH = 4
"""Iterations in a turn. The first is not measured: it still waits for averages of the turn before."""
CLEAR = 1.5
"""Ratio of durations that decides within a turn: longer than an iteration that other work disturbs."""
TURNS = 3
"""Maximum turns of FSDP2's own collectives."""


class OwnTurns:
    """Turns of one model. `possible`: FSDP2's own collectives compute the same averages."""

    def __init__(self, possible: bool) -> None:
        self.own = False
        """True while FSDP2's own collectives have their turn, or once they keep the model for good."""
        self.settled = not possible
        """True once the model keeps either Prophet's or FSDP2's own collectives for good."""
        self._ended = 0
        self._last_s = 0.0
        self._took_s: dict[bool, list[float]] = {False: [], True: []}
        """Durations of iterations, under Prophet (False) and with FSDP2's own collectives (True)."""

    def iteration_ends(self, now: float) -> bool:
        """Record the end of an iteration. Return True if the ranks must now exchange `measured` and call `decide`."""
        self._ended += 1
        since_s, self._last_s = self._last_s, now
        if self.settled:
            return False
        turn, place = divmod(self._ended - 1 - BEFORE, LENGTH)
        if self._ended > FIRST and place != 0:
            self._took_s[self.own].append(now - since_s)
        decides = self.own and place != 0
        if place == LENGTH - 1 and turn >= -1:
            self.own = not self.own
        return decides

    @property
    def measured(self) -> tuple[float, ...]:
        """Median durations with FSDP2's own collectives and under Prophet, and a verdict: 1.0 if the slowest iteration
        of the former beats the fastest of the latter, -1.0 the other way round, 0.0 otherwise. Within a turn one has to
        beat the other by CLEAR.
        """
        own, late = self._took_s[True], self._took_s[False]
        by = CLEAR if self.own else 1.0
        return median(own), median(late), float(by * max(own) < min(late)) - float(min(own) > by * max(late))

    def decide(self, measured: Sequence[Sequence[float]]) -> None:
        """Decide from what each rank `measured`: if all verdicts agree, else after the last turn, by the medians."""
        own_s, late_s, verdicts = (sum(column) for column in zip(*measured, strict=True))
        last = self._ended >= BEFORE + (2 * TURNS - 1) * LENGTH
        if last or abs(verdicts) == len(measured):
            self.settled, self.own = True, own_s < late_s

    @property
    def words(self) -> str:
        """Time of FSDP2 without Prophet, for the line at the end of a job."""
        own_s = self._took_s[True]
        if self.settled and self.own:
            return "FSDP2 then went on without Prophet, which was faster"
        if not own_s:
            return "how long FSDP2 takes without Prophet is not known"
        count = len(own_s)
        of = f"median of {count} iterations" if count > 1 else "one iteration"
        return f"FSDP2 without Prophet took {median(own_s):.3g} s ({of})"
