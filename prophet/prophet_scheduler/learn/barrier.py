"""Whether the iterations of a job wait for all averages before any weight is used: seen, not asked for.

Rule of this file: pure; one word for each iteration comes in. A script that clips gradients by the norm of all of them,
scales losses, or whose updates must not be late needs the last average before its next forward pass begins. What is
most urgent for that pass is of no account then, and how soon the last of them is back is all that counts.
"""

from __future__ import annotations

LEAST_ALIKE = 3
"""Iterations in a row that say otherwise than what is believed, before that changes: one that evaluates its model waits
for all averages, too."""


class BarrierWatch:
    """Of one job, from what its iterations did."""

    def __init__(self) -> None:
        self.holds = False
        """Whether iterations wait for all."""
        self._others = 0

    def iteration(self, waited: bool) -> None:
        """The next iteration began: `waited` where nothing of the one before was still to come by then."""
        self._others = self._others + 1 if waited != self.holds else 0
        if self._others >= LEAST_ALIKE:
            self.holds, self._others = waited, 0
