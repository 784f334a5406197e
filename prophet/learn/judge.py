"""Which cut a job should have: predictions choose, measured iteration times decide.

Rule of this file: no clock, thread or file; iteration times and choices come in. Times are seconds.

A prediction knows the wire and the servers' links. It does not know what a message costs the processor where cores are
short, nor a link that is shared with others for a while. So what a cut was predicted to bring is measured once it
holds; a cut that turns out worse than a former one is given up for that, and where predictions are close, neighbours of
the best are tried. How many there may be follows from what one costs: on a parameter server two copies of the gradients
for as long as the job lasts. One that the job has had costs little, so two that are too near to tell take turns.

What predictions leave out differs with the size of blocks, so what one cut took beside what was predicted of it says
something of others of about its size: such a one is not tried on a promise that this does not bear out.

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

from prophet.core.choice import Choice
from prophet.core.cut import Cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

WORSE = 0.005
"""A former cut is better where it takes less by more than this share, and as long as it can be looked at again by more
than a standard error."""
CLOSE = 0.05
"""Predictions within this share of the best are too near to tell without measuring."""
LEAST_PERIODS = 5
"""Of fewer iterations than these nothing is concluded. Of more a cut counts as measured in any of three cases: what it
takes is known exactly, it is clearly worse than another, or there are enough."""
ENOUGH_PERIODS = 10
"""So many are enough to go on: where they scatter by a tenth, a cut that takes a fifth longer is found out. Two that
differ by less are compared by turns."""
EXACT = 0.01
"""Exact is what has a standard error of at most this share."""
LARGE = 0.05
CLEARLY = 2.0
"""Clearly worse is one that takes longer than the best by more than LARGE and by more than CLEARLY standard errors."""
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


@dataclass(frozen=True)
class Recuts:
    """How many a job may have, which follows from what one costs its engine."""

    most_cuts: int
    """In one job. After that only those that it has had are chosen from."""
    least_gain: float
    """The share of an iteration that a cut must promise which has not been tried."""
    most_returns: int
    """To former cuts that are better, in one regime of the network: where times scatter, the better of two may seem to
    change for ever."""
    most_looks: int
    """At former cuts that may be better for all that is known."""
    most_tries: int
    """Neighbours that are tried in one regime of the network."""
    believes: bool
    """Whether no neighbour is tried that is predicted to take longer than the cut in force does. What messages take of
    processors may pass for computing, so another may still take less than predicted: where a recut is cheap, it is
    tried."""
    waits: bool
    """Whether the first question waits until it is known what the job does now."""


FEW_RECUTS = Recuts(most_cuts=8, least_gain=0.03, most_returns=8, most_looks=6, most_tries=3, believes=True, waits=True)
"""Where a new cut costs as much as some iterations, and servers keep two copies of the gradients for each. One that was
had costs next to nothing."""
MANY_RECUTS = Recuts(
    most_cuts=24, least_gain=0.01, most_returns=8, most_looks=0, most_tries=4, believes=False, waits=False
)
"""Where one costs no more than a look at what was agreed; but jobs of milliseconds are to come to rest."""


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


class Judge:
    """The cuts of one job: what they were measured to take, and which is wanted next."""

    def __init__(self, recuts: Recuts = FEW_RECUTS) -> None:
        self.recuts = recuts
        self._used: list[Cut] = []
        self._times = Comparisons()
        self._known: set[Cut] = set()
        """Those that count as measured."""
        self._seen: Cut | None = None
        self._tries = 0
        self._returns = 0
        self._looks = 0

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
        before = self._times.newest
        if before is not None and before.cut != cut and before.rough:
            self._known.add(before.cut)
        self._times.begins(cut)

    def measured(self, cut: Cut, periods_s: NDArray[np.float64]) -> None:
        """Iteration times under the cut, which is in force, since it is; too few for how much they scatter say nothing.

        If it was in force before, what it took then counts as well.
        """
        if len(periods_s) < LEAST_ROUGH:
            return
        self._times.take(cut, periods_s)
        if len(periods_s) < LEAST_PERIODS:
            return
        self._seen = cut
        if len(periods_s) >= ENOUGH_PERIODS or self._times.error(cut) <= EXACT or self._clearly_worse(cut):
            self._known.add(cut)

    def _clearly_worse(self, cut: Cut) -> bool:
        return any(-one.share > max(CLEARLY * one.error, LARGE) for one in self._compared(cut).values())

    def _compared(self, cut: Cut) -> dict[Cut, Excess]:
        return {other: one for other, one in self._times.against(cut).items() if other in self._known}

    def left(self, cut: Cut, iteration_s: float) -> None:
        """It was in force so shortly that nothing else is known of it."""
        if cut not in self._used:
            self._used.append(cut)
        self._times.left(cut, iteration_s)
        self._known.add(cut)

    def forget(self, cut: Cut) -> None:
        """What it takes is to be measured anew."""
        self._times.forget(cut)
        self._known.discard(cut)
        if self._seen == cut:
            self._seen = None

    def seen(self, cut: Cut) -> bool:
        """Whether it has been in force for some iterations, though what it takes may not be known well yet."""
        return self._seen == cut

    def iteration_s(self, cut: Cut) -> float | None:
        """What it was measured to take, whenever that was; None where that is not known."""
        return self._times.median_s(cut) if cut in self._known else None

    def new_regime(self) -> None:
        """The network or the job has changed: what was measured before says nothing any more."""
        self._times.begin_anew()
        self._known.clear()
        self._tries = self._returns = self._looks = 0

    def better_former(self, in_force: Cut) -> Cut | None:
        """A cut that was measured to be better than the one in force, the best such; None where there is none."""
        if not self._may_return or in_force not in self._known:
            return None
        compared = self._compared(in_force)
        best = min(compared, key=lambda cut: compared[cut].share, default=None)
        if best is None:
            return None
        decided = 0 < self.recuts.most_looks <= self._looks
        doubt = 0.0 if decided else compared[best].error
        return best if -compared[best].share > max(WORSE, doubt) else None

    @property
    def _may_return(self) -> bool:
        return self._returns < self.recuts.most_returns

    @property
    def _looked_at(self) -> bool:
        """Whether what it came back for, if the cut in force is a former one, has been seen."""
        newest = self._times.newest
        return newest is not None and len(newest.periods_s) >= LEAST_PERIODS

    def wanted(self, choices: Sequence[Choice], in_force: Cut) -> Choice:
        """The choice that the job should have next; `choices` are one for each cut, the best first.

        `in_force` is among them, and has been measured unless it is what the job began with.
        """
        current = next(choice for choice in choices if choice.cut == in_force)
        former = self.better_former(in_force)
        if former is not None and self._looked_at:
            self._returns += 1
            return next((choice for choice in choices if choice.cut == former), current)
        if not self._may_return:
            return current  # From one that turns out worse there would be no way back.
        possible = [choice for choice in choices if self.may_cut_anew or choice.cut in self._used]
        untried = [choice for choice in possible if choice.cut not in self._known and choice.cut != in_force]
        if untried and self._used[:1] == [in_force] and choices.index(untried[0]) < choices.index(current):
            return untried[0]  # What the job began with knew nothing: any that is taken for better is worth a recut.
        promising = self._promising(untried, possible, current) if untried else None
        if promising is not None:
            return promising
        return self._neighbour(possible, current) or self._rival(possible, current) or current

    def _promising(self, untried: Sequence[Choice], possible: Sequence[Choice], current: Choice) -> Choice | None:
        """The best of the untried that is worth a recut, None where none is.

        By the predictions: of it, and of the cut in force or, where that is less, of a former one that was not clearly
        worse. And by what the measured cut took that is nearest in size, beside what was predicted of that.
        """
        compared = self._compared(current.cut)
        worse = {cut for cut, one in compared.items() if one.share > CLEARLY * one.error}
        former = (choice.iteration_s for choice in possible if choice.cut in compared and choice.cut not in worse)
        enough = 1 - self.recuts.least_gain
        promised_s, measured_s = min([current.iteration_s, *former]), self.iteration_s(current.cut)
        better = (choice for choice in untried if choice.iteration_s < promised_s * enough)
        if measured_s is None:
            return next(better, None)
        took_s = {cut: measured_s * math.exp(one.share) for cut, one in compared.items()} | {current.cut: measured_s}
        measured = [choice for choice in (current, *possible) if choice.cut in took_s]
        for choice in better:
            size_bytes = _usual_bytes(choice.cut)
            nearest = min(measured, key=lambda other: abs(math.log(_usual_bytes(other.cut) / size_bytes)))
            if choice.iteration_s * took_s[nearest.cut] / nearest.iteration_s < measured_s * enough:
                return choice
        return None

    def _neighbour(self, possible: Sequence[Choice], current: Choice) -> Choice | None:
        """The cut with the next larger blocks, or else the next smaller: untried, and predicted about as good. Larger
        ones also where they promise no more than the cut in force may take: what that takes longer than predicted may
        be its messages' cost, of which larger blocks have less.

        Next to it is also what follows the largest size that was measured to be as good: on a plateau a job would look
        no further than one size. Downwards it stops there, and at one of which a larger seems to be better, since
        predictions promise too much of small blocks. A cut that was made for this job's pattern is none of a row of
        sizes, and has no neighbours; where a recut is cheap, it is one itself of what has smaller blocks.
        """
        measured_s = self.iteration_s(current.cut)
        if self._tries >= self.recuts.most_tries or measured_s is None:
            return None
        if len(current.cut.segments) > 1 and current.cut != self._used[0]:
            return None
        size = _size(current)
        compared = self._compared(current.cut)
        alike = {cut for cut, one in compared.items() if abs(one.share) <= CLEARLY * one.error}
        uniform = [choice for choice in possible if len(choice.cut.segments) == 1 and choice.cut != current.cut]
        above = [choice for choice in uniform if _size(choice) > size]
        larger = min((choice for choice in above if choice.cut not in alike), key=_size, default=None)
        smaller = max((choice for choice in uniform if _size(choice) < size), key=_size, default=None)
        if any(choice.cut in compared and compared[choice.cut].share < -WORSE for choice in above):
            smaller = None
        close_s = current.iteration_s * (1 + CLOSE)
        takes_s = max(measured_s, current.iteration_s) * (1 + CLEARLY * self._times.error(current.cut))
        if self.recuts.believes:
            close_s = min(close_s, takes_s)
        made = None if self.recuts.believes else self._made_larger(possible, current)
        for near, most_s in ((made, max(close_s, takes_s)), (larger, max(close_s, takes_s)), (smaller, close_s)):
            if near is None or near.cut in self._known or near.iteration_s > most_s:
                continue
            self._tries += 1
            return near
        return None

    def _made_larger(self, possible: Sequence[Choice], current: Choice) -> Choice | None:
        """The best cut that was made for the pattern, of those with larger blocks than the one in force."""
        larger = (choice for choice in possible if _usual_bytes(choice.cut) > _usual_bytes(current.cut))
        return next((choice for choice in larger if len(choice.cut.segments) > 1), None)

    def _rival(self, possible: Sequence[Choice], current: Choice) -> Choice | None:
        """A former cut that may be the better one for all that is known.

        The two take turns until that is known, or their difference so exactly that it does not matter.
        """
        if self._looks >= self.recuts.most_looks or current.cut not in self._known or not self._looked_at:
            return None
        compared = self._compared(current.cut)
        near = [
            choice
            for choice in possible
            if choice.cut in compared
            and choice.iteration_s <= current.iteration_s * (1 + CLOSE)
            and compared[choice.cut].error > EXACT
            and compared[choice.cut].share <= CLEARLY * compared[choice.cut].error
        ]
        if not near:
            return None
        self._looks += 1
        return min(near, key=lambda choice: compared[choice.cut].share)


def _size(choice: Choice) -> int:
    return choice.cut.block_bytes_at(0)


def _usual_bytes(cut: Cut) -> float:
    """Of its blocks, the mean by factors of what its segments have."""
    return math.exp(sum(math.log(segment.block_bytes) for segment in cut.segments) / len(cut.segments))


def robust_deviation(off: NDArray[np.float64]) -> float:
    """The standard deviation of what is off by so much, whichever way, from the median of it."""
    return 1.4826 * float(np.median(np.abs(off)))


def median_error_s(periods_s: NDArray[np.float64], median_s: float) -> float:
    """The standard error of a median of these, from the median of the distances to it."""
    return error_of_median(robust_deviation(periods_s - median_s), len(periods_s))


def error_of_median(deviation: float, count: int) -> float:
    """The standard error of the median of so many with this standard deviation."""
    return math.sqrt(math.pi / 2) * deviation / math.sqrt(count)
