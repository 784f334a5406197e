"""Whether a cut that has just been taken up is to be left at once: looked at after each of its first iterations.

Rule of this file: pure; times come in, in seconds. It is for what is far worse than what there was before, beyond any
noise. What is a little worse, or better, is judge.py's to find out, which takes many iterations.

An iteration is not blamed on blocks for being long: the program may have evaluated its model in it. What counts is how
long its averages took, from its first gradient to the last of them. The next iteration's cannot be on their way before
they are there, so where they take longer than whole iterations did before, iterations do so, too.
"""

from __future__ import annotations

from collections import deque
from statistics import median

WARM_UP = 2
"""A job's first iterations say nothing."""
LEAST = 3
"""Of fewer iterations nobody knows what is usual."""
RECENT = 10
TRIED = 5
"""So many iterations are looked at."""
FAR = 0.5
"""It is left where its first iteration takes longer by this share, or its first two by half of it, and so on; and all
of them longer than any of the recent ones before it."""


class TrialRule:
    """Of one job, on the rank that decides."""

    def __init__(self) -> None:
        self._skip = WARM_UP
        self._periods_s: deque[float] = deque(maxlen=RECENT)
        self._before_s: deque[float] | None = None
        self._count = 0
        self._least_s = 0.0

    @property
    def under_way(self) -> bool:
        """Whether the cut in force may yet have to be left for the one before it."""
        return self._before_s is not None

    def begins(self) -> None:
        """Another cut holds from now on. Where the last one was not tried to the end, what was before it counts."""
        if self._before_s is None:
            self._before_s = self._periods_s if len(self._periods_s) >= LEAST else None
        self._periods_s = deque(maxlen=RECENT)
        self._count = 0

    def iteration(self, period_s: float, averages_s: float) -> bool:
        """One has ended that took so long, and its averages so much of it. Whether its cut is to be left at once."""
        if self._skip:
            self._skip -= 1
            return False
        self._periods_s.append(period_s)
        before_s = self._before_s
        if before_s is None:
            return False
        self._count += 1
        self._least_s = min(averages_s, self._least_s) if self._count > 1 else averages_s
        if self._least_s > max(median(before_s) * (1 + FAR / self._count), *before_s):
            self._periods_s, self._before_s = before_s, None
            return True
        if self._count == TRIED:
            self._before_s = None
        return False
