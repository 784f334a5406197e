"""Detection of a barrier: the job's iterations wait for all averages before any weight is used.

Rule of this file: pure; one observation for each iteration comes in. A script needs the last average before its next
forward pass if it clips gradients by their total norm, scales losses, or must not update late. Then urgency does not
matter, and only the time at which the last average is back counts.
"""

from __future__ import annotations

LEAST_ALIKE = 3
"""Iterations in a row that must contradict the belief before it changes. An iteration that evaluates the model waits
for all averages, too."""


class BarrierWatch:
    """Barrier of one job, as its iterations show it."""

    def __init__(self) -> None:
        self.holds = False
        """True if iterations wait for all averages."""
        self._others = 0

    def iteration(self, waited: bool) -> None:
        """Note that the next iteration began; `waited` if no average of the one before was missing by then."""
        self._others = self._others + 1 if waited != self.holds else 0
        if self._others >= LEAST_ALIKE:
            self.holds, self._others = waited, 0
