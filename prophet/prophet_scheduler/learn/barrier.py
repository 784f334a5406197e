"""Detection of a barrier: the job's iterations wait for all averages before they use any weight.

Rule of this file: pure code; its input is one observation per iteration. A script needs the last average before its
next forward pass if it clips gradients by their total norm, scales losses, or must not update late. Then urgency does
not matter: only the arrival of the last average counts.
"""

from __future__ import annotations

LEAST_ALIKE = 3
"""Consecutive iterations that must contradict the belief before it changes. The first iteration is believed at once. An
iteration that evaluates the model also waits for all averages."""


class BarrierWatch:
    """Detector of a barrier in one job, from its iterations."""

    def __init__(self) -> None:
        self.holds = False
        """True if iterations wait for all averages."""
        self._others = LEAST_ALIKE - 1

    def iteration(self, waited: bool) -> None:
        """Record that the next iteration began; `waited` if it had all averages of the previous one by then."""
        self._others = self._others + 1 if waited != self.holds else 0
        if self._others >= LEAST_ALIKE:
            self.holds, self._others = waited, 0
