"""Whether a module's iterations are faster with torch's own reducer than under Prophet: measured, not predicted.

Rule of this file: pure. Iteration times come in, what the ranks should do next comes out; turns.py does it. Times are
seconds.

Once blocks and their order have settled, torch's reducer gets a short *turn*. Where its fastest iteration is much
slower than Prophet's usual one, as on any network that matters, that was all. Where iterations are long and scatter
little, the next turn is of a few more, and all is over if the fastest of those is hardly faster. Otherwise it gets a
longer turn, and Prophet iterates as long once more. torch's reducer stays only where it was clearly faster than Prophet
both before and after: what else the machine does for a while must not decide.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from enum import Enum, auto

import numpy as np

FOR_GOOD = -1
"""In place of a number of iterations: torch's reducer stays."""

WARM_UP = 2
"""Iterations after a change of reducers that do not count: torch's has its last buckets in the third."""
LEAST_COUNT, MOST_COUNT = 20, 200
COUNT_S = 1.0
"""So many iterations are compared, as make up COUNT_S within these limits."""
LEAST_LOOK, LOOK_S = 2, 0.3
"""And so many are in the first turn, but no more than are compared."""
NO_RIVAL = 1.1
"""torch's reducer is given up whose fastest iteration of the first turn took more than this times Prophet's usual."""
LONG_S, TRIED = 4.0, 4
"""Before a longer turn of more seconds than LONG_S there may be one in which so many iterations count."""
CLEARLY, ERRORS = 0.05, 3.0
"""It is faster where Prophet takes more by this share and by so many standard errors."""
HARDLY = CLEARLY / 2
"""Where the fastest iteration of that turn is faster than Prophet's usual one by less than this share, torch's reducer
will not be found to be clearly faster. Where iterations scatter by more than it, the fastest of a few does not tell."""
MOST_COMPARISONS = 3
"""Of one module. After the first, each is due to blocks that were not compared before."""


class _Stage(Enum):
    WATCH = auto()  # until enough iterations of one cut and order are known
    LOOK = auto()  # the first turn was asked for
    TRY = auto()  # a second one was, of few iterations
    TURN = auto()  # the longer one was
    AFTER = auto()  # Prophet iterates once more
    KEPT = auto()  # Prophet is as fast
    GIVEN_BACK = auto()


class Comparison:
    """One module's, on the rank that decides."""

    def __init__(self) -> None:
        self._stage = _Stage.WATCH
        self._blocks: Hashable | None = None
        self._compared: set[Hashable] = set()
        self._skip = 0
        self._own: list[float] = []
        self._torch: list[float] = []

    def under_prophet(self, period_s: float, blocks: Hashable | None) -> int:
        """An iteration of Prophet's took so long; `blocks` says which cut and order it had, None while they change.

        Returns how many iterations torch's reducer is to have, from some later one on: 0 for none, or FOR_GOOD.
        """
        if self._stage is _Stage.GIVEN_BACK:
            return 0
        if self._stage is _Stage.KEPT:
            if blocks is None or blocks in self._compared or len(self._compared) >= MOST_COMPARISONS:
                return 0
            self._stage, self._blocks = _Stage.WATCH, None
        if self._stage in (_Stage.WATCH, _Stage.AFTER) and (blocks is None or blocks != self._blocks):
            self._stage, self._blocks, self._skip, self._own = _Stage.WATCH, blocks, WARM_UP, []
        if self._skip:
            self._skip -= 1
            return 0
        if blocks is None:
            return 0
        self._own.append(period_s)
        self._own = self._own[-MOST_COUNT:]
        if self._stage is _Stage.WATCH and _enough(self._own):
            self._stage = _Stage.LOOK
            return min(_count(self._own), max(LEAST_LOOK, math.ceil(LOOK_S / self.own_s)))
        if self._stage is _Stage.AFTER and _enough(self._own):
            if clearly_faster(self._torch, self._own):
                self._stage = _Stage.GIVEN_BACK
                return FOR_GOOD
            self._keep()
        return 0

    def under_torch(self, period_s: float) -> None:
        """An iteration with torch's reducer took so long."""
        self._torch.append(period_s)

    def turn_ends(self) -> int:
        """torch's reducer has had the iterations that were asked for. Returns as `under_prophet`."""
        turn, self._torch = self._torch, []
        self._skip = WARM_UP
        if self._stage is _Stage.LOOK and turn and min(turn) <= NO_RIVAL * self.own_s:
            return self._next_turn(_Stage.TRY if self._few_tell() else _Stage.TURN)
        if self._stage is _Stage.TRY and turn and min(turn[WARM_UP:], default=math.inf) <= (1 - HARDLY) * self.own_s:
            return self._next_turn(_Stage.TURN)
        before, self._own = self._own, []
        self._torch = turn[WARM_UP:]
        if self._stage is _Stage.TURN and self._torch and clearly_faster(self._torch, before):
            self._stage = _Stage.AFTER
        else:
            self._keep()
        return 0

    def _next_turn(self, stage: _Stage) -> int:
        self._stage = stage
        return WARM_UP + (TRIED if stage is _Stage.TRY else _count(self._own))

    def _few_tell(self) -> bool:
        """Whether the longer turn would take long, and a few iterations may do instead."""
        from prophet.learn.judge import robust_deviation  # As in `clearly_faster`.

        scatter_s = robust_deviation(np.array(self._own) - self.own_s)
        return _count(self._own) * self.own_s > LONG_S and scatter_s < HARDLY * self.own_s

    @property
    def own_s(self) -> float:
        """What an iteration took under Prophet, a median."""
        return float(np.median(self._own))

    @property
    def torch_s(self) -> float:
        """And with torch's reducer."""
        return float(np.median(self._torch))

    def _keep(self) -> None:
        self._stage = _Stage.KEPT
        self._compared.add(self._blocks)
        self._own, self._torch = [], []


def clearly_faster(periods_s: Sequence[float], than_s: Sequence[float]) -> bool:
    """Whether iterations of the first kind are faster, beyond their scatter and by a share that matters."""
    from prophet.learn.judge import median_error_s  # The rank that decides needs it, and only in the end.

    ours, others = np.array(periods_s), np.array(than_s)
    ours_s, others_s = float(np.median(ours)), float(np.median(others))
    error_s = math.hypot(median_error_s(ours, ours_s), median_error_s(others, others_s))
    return others_s - ours_s > max(CLEARLY * ours_s, ERRORS * error_s)


def _count(own: Sequence[float]) -> int:
    """How many iterations are compared."""
    return min(max(math.ceil(COUNT_S / float(np.median(own))), LEAST_COUNT), MOST_COUNT)


def _enough(own: Sequence[float]) -> bool:
    return len(own) >= LEAST_COUNT and (len(own) >= MOST_COUNT or sum(own) >= COUNT_S)
