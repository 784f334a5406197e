"""The job profiler: the stepwise gradient-generation pattern, learned from the hook's events.

Rule of this file: statistics over events; no clock, thread or file. All times are those of the events.

splitting.py divides the events into iterations. Each iteration is a row of times. Rows are aligned by their median
offset from the estimate, and the estimate is the median of each column. So a straggling iteration, a single late
gradient or a skipped gradient changes nothing. The estimate follows drift as rows leave the window.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import MOST_FORWARDS, EventKind, QueueKind
from prophet_scheduler.core.profile import GradientProfile, Profile, split_times
from prophet_scheduler.learn.splitting import (
    FORWARD_IDS,
    MOST_OPEN,
    NO_EVENTS,
    ObservedIteration,
    RepeatSplitter,
    RoundSplitter,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

WINDOW = 50
"""Maximum iterations in an estimate; the paper profiles 50."""
WARM_UP = 2
"""Number of first iterations left out: they set up tensors and connections."""
SHIFT_ROWS = 3
"""Consecutive iterations, all longer or shorter by SHIFT_RATIO, that mean a new pace, such as another batch size."""
SHIFT_RATIO = 1.2
LEAST_AHEAD = 0.1
"""Minimum share of forward after a gradient for it to bound forward's time. For a smaller share, the error of the start
of backward is too large."""


class JobProfiler:
    """Learner of a job's Profile from push events.

    `forward_ids`: ids are in forward order, in whatever order gradients arrive; otherwise the profiler finds out.
    `warm_up`: number of iterations left out at the start and after a restart, since they set things up. As many more
    make a first estimate. `sees_rounds`: the engine tells when an iteration's gradients are all generated.
    """

    def __init__(self, forward_ids: bool = False, warm_up: int = WARM_UP, sees_rounds: bool = False) -> None:
        self._forward_ids = forward_ids
        self.warm_up = warm_up
        self._splitter = RoundSplitter() if sees_rounds else RepeatSplitter()
        self._rows: deque[ObservedIteration] = deque(maxlen=WINDOW)
        self._begin_s: float | None = None
        self._ended_s = np.nan  # end of the last iteration's backward pass
        self._took_s: list[float] = []
        self._seen = 0
        self._forward_ends: deque[float] = deque(maxlen=MOST_FORWARDS)
        self._returned = NO_EVENTS  # ends of pulls since the last finished iteration
        self._estimate: _Estimate | None = None
        self._before: Profile | None = None
        self._forward_s: Mapping[int, float] = {}
        self.warmed_up_s: float | None = None
        """End of backward of the last warm-up iteration, at the start of the job or after a restart; None before."""

    def forward_ended(self, times_s: Sequence[float]) -> None:
        """Record ends of forward passes (seconds of the events' clock, in order), if the engine sees them.

        Call this before passing the subsequent events to `observe`.
        """
        self._forward_ends.extend(times_s)

    def observe(self, events: NDArray[Any], round_ends: Sequence[float] = ()) -> None:
        """Record events (EVENT_DTYPE) in time order; only generated gradients and ends of pulls count. `round_ends`:
        times since the last call when all gradients of an iteration were generated, if the engine sees them.

        Iterations with lost events are left out.
        """
        pulled = events[(events["kind"] == EventKind.FINISH) & (events["queue"] == QueueKind.PULL)]
        self._returned = np.concatenate([self._returned, pulled])[-MOST_OPEN:]
        for iteration in self._splitter.split(events, round_ends):
            self._close(iteration)

    def traced(self, forward_s: Mapping[int, float]) -> None:
        """Use these forward times (seconds, by id) from now on; if empty, estimate them again."""
        self._forward_s = forward_s
        self._estimate = None

    def restart(self, events: NDArray[Any] = NO_EVENTS, round_ends: Sequence[float] = ()) -> None:
        """Forget everything but `latest`: new ids follow, as after a new cut. `events` and `round_ends`, those since
        the last call of `observe`, have both kinds.
        """
        self._before = self.latest
        self._splitter.restart(events, round_ends)
        self._rows.clear()
        self._begin_s, self._ended_s, self._took_s = None, np.nan, []
        self._seen = 0
        self.warmed_up_s = None
        self._returned = self._returned[:0]
        self._forward_s = {}
        self._estimate = None

    def _close(self, row: ObservedIteration) -> None:
        self._seen += 1
        # After a restart all iterations count; at the start of the job only those after the warm-up.
        if self._begin_s is not None and (self._before is not None or self._seen > self.warm_up + 1):
            self._took_s.append(row.begin_s - self._begin_s)
        self._begin_s = row.begin_s
        before, self._ended_s = self._ended_s, float(row.times.max())
        if self._seen <= self.warm_up:
            if self._seen == self.warm_up:
                self.warmed_up_s = self._ended_s
            return
        times = self._returned["time_s"]
        returned = self._returned[(times > before) & (times <= row.begin_s)]
        self._returned = self._returned[times > row.begin_s]
        ended = [time_s for time_s in self._forward_ends if before < time_s <= row.begin_s]
        forward_end_s = ended[-1] if ended else np.nan
        self._rows.append(replace(row, returned=returned, forward_end_s=forward_end_s, before_s=before))
        self._estimate = None
        self._follow_new_pace()

    def _follow_new_pace(self) -> None:
        """Forget the old rows if the pace has changed: another batch size changes all times at once."""
        spans = [row.span_s for row in self._rows]
        older, newest = spans[:-SHIFT_ROWS], spans[-SHIFT_ROWS:]
        if len(older) < SHIFT_ROWS:
            return
        usual = float(np.median(older))
        if min(newest) > usual * SHIFT_RATIO or max(newest) < usual / SHIFT_RATIO:
            for _ in older:
                self._rows.popleft()

    @property
    def iterations(self) -> int:
        """Number of complete iterations, including the warm-up."""
        return self._seen

    @property
    def periods_s(self) -> NDArray[Any]:
        """Seconds from each iteration's first gradient to the next iteration's, within the window."""
        periods: NDArray[Any] = np.diff([row.begin_s for row in self._rows])
        return periods

    def take_took_s(self) -> list[float]:
        """Return the seconds of each iteration, between first gradients, since the last call or restart."""
        took_s, self._took_s = self._took_s, []
        return took_s

    @property
    def ready(self) -> bool:
        return len(self._rows) >= self.warm_up

    @property
    def profile(self) -> Profile | None:
        """The profile so far; None before the first estimate.

        No event shows the start of backward or the duration of forward. Backward starts at the end of forward, if the
        engine sees it (`forward_ended`). Otherwise it is assumed to start one typical step before the first gradient,
        but not before the last average of the previous iteration arrived, since forward needs all averages. This bound
        matters with few steps, as in VGG-19: a typical step may be longer than forward.

        Forward ends where backward starts, and its time is divided among gradients like that of backward. Forward began
        after gradient 0 was generated, and the part that needs a gradient's average began after the average arrived. So
        each gradient gives an upper bound on forward's time. After the last average arrived, forward waited for
        nothing, so the time since then is a lower bound. Within these bounds, forward is assumed to take half as long
        as backward, which computes about twice as much. Traced times (`traced`) replace this estimate.
        """
        estimate = self._estimated()
        if estimate is None or not self._forward_s:
            return estimate.profile if estimate else None
        return estimate.profile.with_forward(self._forward_s)

    @property
    def latest(self) -> Profile | None:
        """`profile`, or until there is one, the last profile before the restart."""
        return self.profile or self._before

    @property
    def jitter_s(self) -> float:
        """Robust standard deviation of generation times around the estimate."""
        estimate = self._estimated()
        return estimate.jitter_s if estimate else 0.0

    def _estimated(self) -> _Estimate | None:
        if self._estimate is None and self.ready:
            self._estimate = _estimate(list(self._rows), self._forward_ids)
        return self._estimate


@dataclass(frozen=True)
class _Estimate:
    profile: Profile
    jitter_s: float


def _estimate(rows: list[ObservedIteration], forward_ids: bool) -> _Estimate | None:
    # A gradient missing from most iterations (a branch taken once) is not part of the pattern.
    ids, counts = np.unique(np.concatenate([row.ids for row in rows]), return_counts=True)
    ids = ids[counts * 2 > len(rows)]
    if not len(ids):
        return None
    times, sizes = np.full((2, len(rows), len(ids)), np.nan)
    for number, row in enumerate(rows):
        _, here, there = np.intersect1d(ids, row.ids, assume_unique=True, return_indices=True)
        times[number, here] = row.times[there]
        sizes[number, here] = row.sizes[there]
    aligned = times - _median(times.T)[:, None]
    centre = _median(aligned)
    # Align again, to the estimate, so that missing gradients do not shift a row.
    aligned = times - _median((times - centre).T)[:, None]
    centre = _median(aligned)
    jitter_s = float(1.4826 * np.nanmedian(np.abs(aligned - centre)))

    from_first = centre - centre.min()
    order = np.arange(len(ids)) if forward_ids else _urgency(ids, from_first)
    ordered = np.maximum.accumulate(from_first[order][::-1])[::-1]
    steps = split_times(ordered)
    first_step_s = float(np.median([step.gap_s for step in steps[:-1]])) if len(steps) > 1 else 0.0
    seen_s = np.array([row.begin_s - row.forward_end_s for row in rows])
    if np.isnan(seen_s).all():
        first_step_s = min(first_step_s, _most_before_first_s(rows, ids))
    else:
        first_step_s = float(np.nanmedian(seen_s))
    generation = ordered + first_step_s
    shares = np.zeros(len(ids))
    backward_s = float(generation[0]) or 1.0
    for step in steps:
        gap = step.gap_s if step is not steps[-1] else first_step_s
        shares[step.first : step.last + 1] = gap / backward_s / (step.last - step.first + 1)
    if len(steps) == 1:
        shares[:] = 1.0 / len(ids)
    forward_s = _forward_s(rows, ids[order], shares, first_step_s, backward_s / 2)
    names = [f"gradient{gradient}" for gradient in ids[order]]
    columns = (names, _median(sizes)[order].astype(int).tolist(), generation.tolist(), (forward_s * shares).tolist())
    gradients = tuple(itertools.starmap(GradientProfile, zip(*columns, strict=True)))
    return _Estimate(Profile("learned", gradients, tuple(ids[order].tolist())), jitter_s)


def _median(values: NDArray[Any]) -> NDArray[Any]:
    """Return the median of each column, ignoring NaN, in a fraction of np.nanmedian's time."""
    ranked = np.sort(values, axis=0)
    counts = np.maximum(1, np.count_nonzero(~np.isnan(values), axis=0))
    columns = np.arange(values.shape[1])
    middle: NDArray[Any] = (ranked[(counts - 1) // 2, columns] + ranked[counts // 2, columns]) / 2
    return middle


def _urgency(ids: NDArray[Any], from_first: NDArray[Any]) -> NDArray[Any]:
    """Return positions in `ids`, most urgent (generated last) first.

    If ids are in forward order already (the front end's are), they settle the order within a step: times within a step
    differ too little to rely on.
    """
    by_time: NDArray[Any] = np.lexsort((ids, -from_first))
    positions = np.argsort(np.argsort(from_first, kind="stable"), kind="stable")
    forward_ids = len(ids) < 3 or np.corrcoef(positions, np.arange(len(ids)))[0, 1] < FORWARD_IDS
    if forward_ids:
        for step in split_times(from_first[by_time]):
            by_time[step.first : step.last + 1].sort()
    return by_time


def _most_before_first_s(rows: list[ObservedIteration], ids: NDArray[Any]) -> float:
    """Return the maximum time of backward before its first gradient; infinite if no average was seen to arrive."""
    returned = [row.returned[np.isin(row.returned["gradient"], ids)]["time_s"] for row in rows]
    left_s = [row.begin_s - float(times.max()) for row, times in zip(rows, returned, strict=True) if len(times)]
    return float(np.quantile(left_s, 0.1)) if left_s else float("inf")


def _forward_s(
    rows: list[ObservedIteration],
    ids: NDArray[Any],
    shares: NDArray[Any],
    first_step_s: float,
    likely_s: float,
) -> float:
    """Return the time of forward between two iterations: `likely_s`, clipped to the bounds from events.

    `ids` and their `shares` are in forward order.
    """
    ahead = np.cumsum(shares[::-1])[::-1]
    places = np.argsort(ids, kind="stable")
    estimates = []
    for row in rows:
        over_s = row.begin_s - first_step_s
        least_s = most_s = over_s - row.before_s
        back = row.returned[np.isin(row.returned["gradient"], ids)]
        if len(back):
            least_s = over_s - float(back["time_s"].max())
            at = places[np.searchsorted(ids[places], back["gradient"])]
            enough = ahead[at] >= LEAST_AHEAD
            bounds = (over_s - back["time_s"][enough]) / ahead[at][enough]
            most_s = min(most_s, float(bounds.min(initial=np.inf)))
        estimates.append(max(least_s, min(most_s, likely_s)))
    known = [estimate for estimate in estimates if not np.isnan(estimate)]
    return max(0.0, float(np.quantile(known, 0.1))) if known else 0.0
