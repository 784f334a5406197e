"""Whether rounds are better in two phases: measured, not predicted.

Rule of this file: pure. What iterations take comes in, which way they should go next comes out; agent.py has them go
it. Times are seconds.

Two phases (phases.py) let forward begin before all averages are there, and take twice as many operations. Where cores
are short these cost more than that brings. So a job that may have two phases has them for some iterations and then goes
without, and stays with what was faster.

What operations take tells of the network where they are all-reduces alone. So a job that has become slower or faster in
two phases goes without them for a while, and is compared anew; and so is one whose network became another without them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto

import numpy as np

COUNT = 6
"""Iterations that are compared."""
SKIPPED = 1
"""The first after a change does not count."""
LEAST_GAIN = 0.02
"""Two phases have to be faster by this share: iterations scatter, and all-reduces take less of the processor."""
ANOTHER = 0.25
"""Iterations are other ones where they differ by more than this share."""
ANOTHER_NETWORK = 2.0
"""And a network where its rate differs by more than this factor: what is measured of a fast one scatters."""
AGAIN_S = 60.0
"""Not sooner after the last comparison."""


class _State(Enum):
    TRIED = auto()
    COMPARED = auto()
    TWO = auto()
    WHOLE = auto()
    RENEWED = auto()


class DividingRule:
    """One job's. `measured_s`: for so long the network is measured before it is known anew."""

    def __init__(self, measured_s: float) -> None:
        self._measured_s = measured_s
        self._state = _State.TRIED
        self._two_s = 0.0
        """What an iteration takes in two phases."""
        self._bandwidth = math.nan
        """Of the network that the last comparison was made on."""
        self._since_s = 0.0

    @property
    def wanted(self) -> bool:
        """Whether rounds should have two phases."""
        return self._state in (_State.TRIED, _State.TWO)

    @property
    def compares(self) -> bool:
        """Whether they go without for a while only."""
        return self._state in (_State.COMPARED, _State.RENEWED)

    def turn(self, now: float, divided: bool, periods_s: Sequence[float], bandwidth: float) -> bool:
        """`periods_s` are what iterations took since they go the way that they go now, in two phases where `divided`.

        Returns what is `wanted`.
        """
        if divided != self.wanted:
            return self.wanted  # It is under way.
        recent = periods_s[SKIPPED:][-COUNT:]
        recent_s = float(np.median(recent)) if len(recent) == COUNT else None
        if self._state is _State.WHOLE:
            factor = max(bandwidth / self._bandwidth, self._bandwidth / bandwidth)
            if factor > ANOTHER_NETWORK and now - self._since_s > AGAIN_S:
                self._state = _State.TRIED
        elif recent_s is None:
            pass
        elif self._state is _State.TRIED:
            self._two_s, self._state = recent_s, _State.COMPARED
        elif self._state is _State.COMPARED:
            self._bandwidth, self._since_s = bandwidth, now
            self._state = _State.TWO if self._two_s < (1 - LEAST_GAIN) * recent_s else _State.WHOLE
        elif self._state is _State.TWO:
            if abs(recent_s - self._two_s) > ANOTHER * self._two_s and now - self._since_s > AGAIN_S:
                self._state, self._since_s = _State.RENEWED, now
        elif now - self._since_s > self._measured_s:
            self._state = _State.TRIED
        return self.wanted
