"""Which cut a job should have: predictions choose, measured iteration times decide.

Rule of this file: no clock, thread or file; iteration times and choices come in. Times are seconds.

A prediction knows the wire and the servers' links. It does not know what a message costs the processor where cores are
short, nor a link that is shared with others for a while. So what a cut was predicted to bring is measured once it
holds; a cut that turns out worse than a former one is given up for that, and where predictions are close, neighbours of
the best are tried. How many there may be follows from what one costs: on a parameter server two copies of the gradients
for as long as the job lasts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from prophet.core.choice import Choice
from prophet.core.cut import Cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORSE = 0.005
"""A former cut is better where it took less by more than this."""
CLOSE = 0.05
"""Predictions within this share of the best are too near to tell without measuring."""
LEAST_ROUGH = 3
"""So many iterations tell roughly what one takes, for a cut that is left before more have been seen."""
LEAST_PERIODS = 5
"""Of fewer the median never counts as measured. Of more it does in any of three cases: it is exact, it is clearly worse
than another cut's, or there are many. Where times scatter, a few would make the better of two cuts look worse."""
EXACT = 0.01
"""Exact is a median whose standard error is at most this share of it."""
LARGE = 0.05
CLEARLY = 2.0
"""Clearly worse is one that is above the best by more than LARGE of that and by more than CLEARLY standard errors."""
MOST_PERIODS = 40
"""So many are many."""


@dataclass(frozen=True)
class Recuts:
    """How many a job may have, which follows from what one costs its engine."""

    most_cuts: int
    """In one job. After that only those that it has had are chosen from."""
    least_gain: float
    """The share of an iteration that a cut must promise which has not been tried."""
    most_returns: int
    """To former cuts, in one regime of the network: where times scatter, the better of two may seem to change for
    ever."""
    most_tries: int
    """Neighbours that are tried in one regime of the network."""
    waits: bool
    """Whether the first question waits until it is known what the job does now."""


FEW_RECUTS = Recuts(most_cuts=8, least_gain=0.03, most_returns=4, most_tries=2, waits=True)
"""Where one may cost as much as an iteration, and servers keep two copies of the gradients for each cut."""
MANY_RECUTS = Recuts(most_cuts=24, least_gain=0.01, most_returns=8, most_tries=4, waits=False)
"""Where one costs no more than a look at what was agreed."""


class Judge:
    """The cuts of one job: what they were measured to take, and which is wanted next."""

    def __init__(self, recuts: Recuts = FEW_RECUTS) -> None:
        self.recuts = recuts
        self._used: list[Cut] = []
        self._measured: dict[Cut, float] = {}
        self._seen: Cut | None = None
        self._roughly: tuple[Cut, float] | None = None
        """The cut in force, and what an iteration takes at most as far as that is known."""
        self._tries = 0
        self._returns = 0

    @property
    def used(self) -> tuple[Cut, ...]:
        """Cuts that were in force, the first one first."""
        return tuple(self._used)

    @property
    def may_cut_anew(self) -> bool:
        return len(self._used) < self.recuts.most_cuts

    def in_force(self, cut: Cut) -> None:
        """From now on.

        Of the one before it something is known, if not well: without that, one that is twice as slow would be kept for
        as long as its times scatter.
        """
        if cut not in self._used:
            self._used.append(cut)
        if self._roughly is not None and self._roughly[0] != cut:
            self._measured.setdefault(*self._roughly)
            self._roughly = None

    def measured(self, cut: Cut, periods_s: NDArray[np.float64]) -> None:
        """Iteration times under the cut since it is in force; too few for how much they scatter say nothing."""
        if len(periods_s) < LEAST_ROUGH:
            return
        median_s = float(np.median(periods_s))
        error_s = median_error_s(periods_s, median_s)
        self._roughly = cut, median_s + CLEARLY * error_s
        if len(periods_s) < LEAST_PERIODS:
            return
        self._seen = cut
        best_s = min((seconds for other, seconds in self._measured.items() if other != cut), default=math.inf)
        known = error_s <= EXACT * median_s or median_s - best_s > max(CLEARLY * error_s, LARGE * best_s)
        if cut in self._measured or len(periods_s) >= MOST_PERIODS or known:
            self._measured[cut] = median_s

    def left(self, cut: Cut, iteration_s: float) -> None:
        """It was in force so shortly that nothing else is known of it."""
        if cut not in self._used:
            self._used.append(cut)
        self._measured[cut] = iteration_s
        if self._roughly is not None and self._roughly[0] == cut:
            self._roughly = None

    def forget(self, cut: Cut) -> None:
        """What it takes is to be measured anew."""
        self._measured.pop(cut, None)
        if self._seen == cut:
            self._seen = None
        if self._roughly is not None and self._roughly[0] == cut:
            self._roughly = None

    def seen(self, cut: Cut) -> bool:
        """Whether it has been in force for some iterations, though what it takes may not be known well yet."""
        return self._seen == cut

    def iteration_s(self, cut: Cut) -> float | None:
        """What it was measured to take, None where that is not known."""
        return self._measured.get(cut)

    def new_regime(self) -> None:
        """The network or the job has changed: what was measured before says nothing any more."""
        self._measured.clear()
        self._roughly = None
        self._tries = self._returns = 0

    def better_former(self, in_force: Cut) -> Cut | None:
        """A cut that was measured to be better than the one in force, the best such; None where there is none."""
        if self._returns >= self.recuts.most_returns:
            return None
        least_s = self._measured.get(in_force, 0.0) * (1 - WORSE)
        best = min(self._measured, key=self._measured.__getitem__, default=in_force)
        return best if self._measured.get(best, math.inf) < least_s else None

    def wanted(self, choices: Sequence[Choice], in_force: Cut) -> Choice:
        """The choice that the job should have next; `choices` are one for each cut, the best first.

        `in_force` is among them, and has been measured unless it is what the job began with.
        """
        current = next(choice for choice in choices if choice.cut == in_force)
        former = self.better_former(in_force)
        if former is not None:
            self._returns += 1
            return next((choice for choice in choices if choice.cut == former), current)
        possible = [choice for choice in choices if self.may_cut_anew or choice.cut in self._used]
        untried = [choice for choice in possible if choice.cut not in self._measured and choice.cut != in_force]
        if untried:
            # What the job began with knew nothing: any other that is taken for better is worth a recut.
            begun = self._used[:1] == [in_force] and choices.index(untried[0]) < choices.index(current)
            if begun or untried[0].iteration_s < current.iteration_s * (1 - self.recuts.least_gain):
                return untried[0]
        return self._neighbour(possible, current) or current

    def _neighbour(self, possible: Sequence[Choice], current: Choice) -> Choice | None:
        """The cut with the next larger blocks, or else the next smaller: untried, and predicted about as good.

        One that was made for this job's pattern is none of a row of sizes, and has no neighbours.
        """
        if self._tries >= self.recuts.most_tries or current.cut not in self._measured:
            return None
        if len(current.cut.segments) > 1 and current.cut != self._used[0]:
            return None
        size = _size(current)
        uniform = [choice for choice in possible if len(choice.cut.segments) == 1 and choice.cut != current.cut]
        larger = min((choice for choice in uniform if _size(choice) > size), key=_size, default=None)
        smaller = max((choice for choice in uniform if _size(choice) < size), key=_size, default=None)
        for near in (larger, smaller):
            if near is None or near.cut in self._measured or near.iteration_s > current.iteration_s * (1 + CLOSE):
                continue
            self._tries += 1
            return near
        return None


def median_error_s(periods_s: NDArray[np.float64], median_s: float) -> float:
    """The standard error of a median of these, from the median of the distances to it."""
    spread_s = 1.4826 * float(np.median(np.abs(periods_s - median_s)))
    return math.sqrt(math.pi / 2) * spread_s / math.sqrt(len(periods_s))


def _size(choice: Choice) -> int:
    return choice.cut.block_bytes_at(0)
