"""What iterations take under one cut compared with another, whatever drifts meanwhile.

Rule of this file: statistics over iteration times, by cut; no clock, thread or file. Which cut is wanted is judge.py's.

The iterations under one cut, from when it came in force until another did, are a *stretch*. What iterations take
drifts: other work comes and goes, and a cut that was measured a minute ago would seem better or worse than it is. So
only the ends of stretches that follow one another are compared, the last iterations under one cut with the first under
the next. With stretch k under cut(k),

    log(first(k + 1)) - log(last(k)) = effect(cut(k + 1)) - effect(cut(k)) + error

where first and last are winsorized means (Dixon, 1960): an iteration that ends late is often followed by one that is as
much shorter, which a mean makes up for and a median does not. How far iterations that follow one another make up for
each other, or are slow together, is told from all stretches and counts in the errors. All of these together give the
effects by generalized least squares (Aitken, 1936): a cut that comes back is one more pair of comparisons, and one is
compared with another that never was next to it through those between them. The errors of two comparisons that share a
stretch are correlated, the more the shorter it was.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from prophet.core.cut import Cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_ROUGH = 3
"""So many iterations tell roughly what one takes, for a cut that is left before more have been seen."""
COMPARED = 16
"""So many at the end of a stretch are compared, and as many at the beginning of the next. More would be more exact, if
it were not for the drift."""
MOST_STRETCHES = 40
"""Of one job; older ones are forgotten."""
FAR = 3.0
"""What is farther from the median than so many standard deviations counts as if it were so far."""
FEW = 20
"""Of fewer pairs of iterations than about these it is not believed how they go together."""
MOST_ALIKE, MOST_UNLIKE = 0.8, -0.5
"""Correlations of neighbours beyond these are not believed either: the first would make any comparison worthless, and
the second one that is exact."""
LEAST_ERROR = 0.002
"""Of a comparison: less than this share says nothing."""


class Excess(NamedTuple):
    """How much longer iterations are under another cut, as a share, and the standard error of that."""

    share: float
    error: float


@dataclass
class Stretch:
    """Iterations under one cut. `count`: which of its measurements this belongs to, where it was forgotten."""

    cut: Cut
    count: int = 0
    first_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    periods_s: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """The newest, as many as are kept of them."""

    def take(self, periods_s: NDArray[np.float64]) -> None:
        """Iteration times since it began, without the oldest where there are many."""
        if len(self.first_s) < COMPARED and len(periods_s) >= len(self.first_s):
            self.first_s = periods_s[:COMPARED].copy()
        self.periods_s = periods_s

    @property
    def last_s(self) -> NDArray[np.float64]:
        return self.periods_s[-COMPARED:]

    @property
    def rough(self) -> bool:
        """Whether it says anything."""
        return len(self.periods_s) >= LEAST_ROUGH

    @property
    def spread(self) -> float:
        """The robust standard deviation, as a share of the median."""
        return robust_deviation(self.deviations)

    @property
    def deviations(self) -> NDArray[np.float64]:
        """Shares of the median by which each differs from it."""
        median_s = np.median(self.periods_s)
        deviations: NDArray[np.float64] = np.abs(self.periods_s / median_s - 1)
        return deviations

    @property
    def shared(self) -> int:
        """How many iterations are among the first and the last."""
        first, last = len(self.first_s), len(self.last_s)
        return max(0, min(first, last, first + last - len(self.periods_s)))


class Comparisons:
    """The stretches of one job."""

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []
        self._counts: dict[Cut, int] = {}
        self._against: dict[Cut, dict[Cut, Excess]] = {}
        """What was asked since anything changed: a decision asks several times, and it takes two milliseconds."""

    @property
    def newest(self) -> Stretch | None:
        """That of the cut in force; None before there is one."""
        return self._stretches[-1] if self._stretches else None

    def begins(self, cut: Cut) -> None:
        """The cut is in force; nothing new where it was."""
        if not self._stretches or self._stretches[-1].cut != cut:
            self._begin(cut)

    def take(self, cut: Cut, periods_s: NDArray[np.float64]) -> None:
        """Iteration times since the cut is in force, without the oldest where there are many."""
        self.begins(cut)
        self._stretches[-1].take(periods_s)
        self._against.clear()

    def _begin(self, cut: Cut) -> None:
        self._against.clear()
        if self._stretches and not self._stretches[-1].rough:
            self._stretches.pop()
        self._stretches = [*self._stretches[1 - MOST_STRETCHES :], Stretch(cut, self._counts.get(cut, 0))]

    def left(self, cut: Cut, iteration_s: float) -> None:
        """The cut was in force just now, and nothing else is known of it."""
        self.begins(cut)
        stretch = self._stretches[-1]
        stretch.first_s = stretch.periods_s = np.full(COMPARED, iteration_s)
        self._against.clear()

    def forget(self, cut: Cut) -> None:
        """What iterations take under it is another from here on."""
        self._against.clear()
        self._counts[cut] = self._counts.get(cut, 0) + 1
        if self._stretches and self._stretches[-1].cut == cut:
            self._begin(cut)

    def begin_anew(self) -> None:
        """What iterations take is another from here on, whatever the cut."""
        self._against.clear()
        self._counts.clear()
        self._stretches = [Stretch(stretch.cut) for stretch in self._stretches[-1:]]

    def median_s(self, cut: Cut) -> float | None:
        """What an iteration took under it, of all its stretches together."""
        periods_s = [s.periods_s for s in self._stretches if s.cut == cut and s.count == self._counts.get(cut, 0)]
        pooled = np.concatenate(periods_s) if periods_s else np.zeros(0)
        return float(np.median(pooled)) if len(pooled) else None

    def error(self, cut: Cut) -> float:
        """The standard error of what the newest stretch of this cut took that says anything, as a share of that."""
        periods_s = next(one.periods_s for one in reversed(self._stretches) if one.cut == cut and one.rough)
        median_s = float(np.median(periods_s))
        return median_error_s(periods_s, median_s) / median_s

    def against(self, cut: Cut) -> dict[Cut, Excess]:
        """Other cuts compared with this one; none where not enough is known of it."""
        if cut not in self._against:
            self._against[cut] = self._compare(cut)
        return self._against[cut]

    def _compare(self, cut: Cut) -> dict[Cut, Excess]:
        rough = [stretch for stretch in self._stretches if stretch.rough]
        numbers: dict[tuple[Cut, int], int] = {}
        for stretch in rough:
            numbers.setdefault((stretch.cut, stretch.count), len(numbers))
        here = numbers.get((cut, self._counts.get(cut, 0)))
        if here is None or len(numbers) < 2:
            return {}
        # Of few iterations the spread may seem small by chance.
        usual = robust_deviation(np.concatenate([stretch.deviations for stretch in rough]))
        spreads = [max(stretch.spread, usual) for stretch in rough]
        alike = _correlation(rough, spreads)
        variance = [spread**2 * (1 + alike) / (1 - alike) for spread in spreads]
        steps = len(rough) - 1
        logs, design, covariance = np.zeros(steps), np.zeros((steps, len(numbers))), np.zeros((steps, steps))
        for step, (before, after) in enumerate(itertools.pairwise(rough)):
            first_s, last_s = _winsorized(after.first_s, spreads[step + 1]), _winsorized(before.last_s, spreads[step])
            logs[step] = math.log(float(first_s.mean()) / float(last_s.mean()))
            design[step, numbers[after.cut, after.count]] += 1
            design[step, numbers[before.cut, before.count]] -= 1
            covariance[step, step] = (
                variance[step] / len(before.last_s) + variance[step + 1] / len(after.first_s) + LEAST_ERROR**2
            )
            if step + 1 < steps:
                both = after.shared / (len(after.first_s) * len(after.last_s))
                covariance[step, step + 1] = covariance[step + 1, step] = -variance[step + 1] * both
        design = np.delete(design, here, axis=1)
        weighted = np.linalg.solve(covariance, design)
        errors = np.linalg.inv(design.T @ weighted)
        effects = errors @ (weighted.T @ logs)
        others = [node for node in numbers if numbers[node] != here]
        return {
            other: Excess(float(effect), math.sqrt(float(error)))
            for (other, count), effect, error in zip(others, effects, np.diag(errors), strict=True)
            if count == self._counts.get(other, 0)
        }


def _winsorized(periods_s: NDArray[np.float64], spread: float) -> NDArray[np.float64]:
    """The same without outliers; `spread` is the standard deviation as a share of the median."""
    median_s = float(np.median(periods_s))
    return np.clip(periods_s, median_s * (1 - FAR * spread), median_s * (1 + FAR * spread))


def _correlation(stretches: Sequence[Stretch], spreads: Sequence[float]) -> float:
    """Of one iteration with the next, of all stretches together.

    Within a stretch it is with the mean of the same few, which makes it seem smaller by one part in so many.
    """
    together = alone = 0.0
    pairs = 0
    for stretch, spread in zip(stretches, spreads, strict=True):
        off_s = _winsorized(stretch.periods_s, spread)
        off_s = (off_s - off_s.mean()) / off_s.mean()
        squares = float(off_s @ off_s)
        together += float(off_s[:-1] @ off_s[1:]) + squares / len(off_s)
        alone += squares
        pairs += len(off_s) - 1
    if alone == 0:
        return 0.0
    return min(MOST_ALIKE, max(MOST_UNLIKE, together / alone * pairs / (pairs + FEW)))


def robust_deviation(off: NDArray[np.float64]) -> float:
    """The standard deviation of what is off by so much, whichever way, from the median of it."""
    return 1.4826 * float(np.median(np.abs(off)))


def median_error_s(periods_s: NDArray[np.float64], median_s: float) -> float:
    """The standard error of a median of these, from the median of the distances to it."""
    spread_s = robust_deviation(periods_s - median_s)
    return math.sqrt(math.pi / 2) * spread_s / math.sqrt(len(periods_s))
