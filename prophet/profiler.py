"""The job profiler: the stepwise gradient-generation pattern, learned from the hook's events.

Rule of this file: statistics over events; no clock, thread or file. Times that come in are the events'.

A gradient is generated when its first partition is added to the push queue. An iteration ends where a
gradient comes again. Each iteration is a row of times; rows are aligned by their median offset from the
estimate, and the estimate is the median of each column. So a straggling iteration, a gradient that comes
late once or a gradient that is skipped moves nothing, and drift is followed as rows leave the window.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass

import numpy as np

from prophet.model import UNPROFILED_GRADIENT, EventKind, GradientProfile, Profile, QueueKind

WINDOW = 50
"""Iterations that the estimate is made of; the paper profiles 50."""
WARM_UP = 2
"""First iterations set up tensors and connections and say nothing about the job."""
FIRST_ESTIMATE = 4
"""Iterations after warm-up that make a first estimate."""
SHIFT_ROWS = 3
"""So many iterations in a row that are longer or shorter by SHIFT_RATIO are a new pace, not stragglers."""
SHIFT_RATIO = 1.2


@dataclass(frozen=True)
class Step:
    """Gradients `first`..`last` (indices, first is the more urgent) that appear together.

    `time_s` is when the last of them is there, after backward began; `gap_s` the time since the step before.
    """

    first: int
    last: int
    time_s: float
    gap_s: float


@dataclass
class _Iteration:
    times: dict[int, float]
    sizes: dict[int, int]


class JobProfiler:
    """Learns a Profile from push events, and keeps it up to date."""

    def __init__(self, window: int = WINDOW) -> None:
        self._current = _Iteration({}, {})
        self._partitions: set[tuple[int, int]] = set()
        self._rows: deque[_Iteration] = deque(maxlen=window)
        self._spans: deque[float] = deque(maxlen=SHIFT_ROWS)
        self._seen = 0
        self._estimate: _Estimate | None = None

    def observe(self, events: np.ndarray) -> None:
        """Takes in events (EVENT_DTYPE), in order of time; all but gradients being generated are passed over."""
        generated = events[
            (events["kind"] == EventKind.ADD)
            & (events["queue"] == QueueKind.PUSH)
            & (events["gradient"] < UNPROFILED_GRADIENT)
        ]
        columns = (generated[name].tolist() for name in ("gradient", "partition", "time_s", "bytes"))
        for gradient, partition, time_s, size in zip(*columns, strict=True):
            if (gradient, partition) in self._partitions:
                self._close()
            self._partitions.add((gradient, partition))
            self._current.times.setdefault(gradient, time_s)
            self._current.sizes[gradient] = self._current.sizes.get(gradient, 0) + size

    def _close(self) -> None:
        row, self._current = self._current, _Iteration({}, {})
        self._partitions.clear()
        self._seen += 1
        if self._seen <= WARM_UP:
            return
        self._follow_new_pace(row)
        self._rows.append(row)
        self._estimate = None

    def _follow_new_pace(self, row: _Iteration) -> None:
        """A changed batch size changes every time at once: the old rows are forgotten."""
        span = max(row.times.values()) - min(row.times.values())
        self._spans.append(span)
        older = list(self._rows)[: -SHIFT_ROWS + 1]
        if len(self._spans) < SHIFT_ROWS or len(older) < SHIFT_ROWS:
            return
        usual = float(np.median([max(r.times.values()) - min(r.times.values()) for r in older]))
        slower = min(self._spans) > usual * SHIFT_RATIO
        faster = max(self._spans) < usual / SHIFT_RATIO
        if slower or faster:
            recent = list(self._rows)[-SHIFT_ROWS + 1 :]
            self._rows.clear()
            self._rows.extend(recent)

    @property
    def iterations(self) -> int:
        """Complete iterations seen, warm-up included."""
        return self._seen

    @property
    def ready(self) -> bool:
        return len(self._rows) >= min(FIRST_ESTIMATE, SHIFT_ROWS)

    @property
    def profile(self) -> Profile | None:
        """The job so far, or None before the first estimate.

        When backward begins and how long forward takes are not events. Backward is taken to begin one
        typical step before the first gradient; forward is the least time seen from gradient 0 to the
        next iteration's first gradient, less that step, shared out like the backward time.
        """
        estimate = self._estimated()
        return estimate.profile if estimate else None

    @property
    def jitter_s(self) -> float:
        """How far generation times scatter around the estimate: the robust standard deviation."""
        estimate = self._estimated()
        return estimate.jitter_s if estimate else 0.0

    def _estimated(self) -> _Estimate | None:
        if self._estimate is None and self.ready:
            self._estimate = _estimate(list(self._rows))
        return self._estimate


@dataclass(frozen=True)
class _Estimate:
    profile: Profile
    jitter_s: float


def _estimate(rows: list[_Iteration]) -> _Estimate:
    # A gradient that most iterations lack (a branch taken once) is no part of the pattern.
    counts: dict[int, int] = {}
    for row in rows:
        for gradient in row.times:
            counts[gradient] = counts.get(gradient, 0) + 1
    ids = sorted(gradient for gradient, count in counts.items() if count * 2 > len(rows))
    times = np.array([[row.times.get(gradient, np.nan) for gradient in ids] for row in rows])
    aligned = times - np.nanmedian(times, axis=1, keepdims=True)
    centre = np.nanmedian(aligned, axis=0)
    # Once more against the estimate, so that a row with gradients missing is not shifted by their absence.
    aligned = times - np.nanmedian(times - centre, axis=1, keepdims=True)
    centre = np.nanmedian(aligned, axis=0)
    jitter_s = float(1.4826 * np.nanmedian(np.abs(aligned - centre)))
    sizes = [int(np.median([row.sizes[gradient] for row in rows if gradient in row.sizes])) for gradient in ids]

    from_first = centre - centre.min()
    order = _urgency(ids, from_first)
    ordered = np.maximum.accumulate(from_first[order][::-1])[::-1]
    steps = _split(ordered)
    first_step_s = float(np.median([step.gap_s for step in steps[:-1]])) if len(steps) > 1 else 0.0
    generation = ordered + first_step_s
    forward_s = max(0.0, _forward_gap(rows, ids[order[0]], ids) - first_step_s)
    shares = np.zeros(len(ids))
    backward_s = float(generation[0]) or 1.0
    for step in steps:
        gap = step.gap_s if step is not steps[-1] else first_step_s
        shares[step.first : step.last + 1] = gap / backward_s / (step.last - step.first + 1)
    gradients = tuple(
        GradientProfile(f"gradient{ids[k]}", sizes[k], float(generation[i]), float(forward_s * shares[i]))
        for i, k in enumerate(order)
    )
    return _Estimate(Profile("learned", gradients, tuple(ids[k] for k in order)), jitter_s)


def _urgency(ids: list[int], from_first: np.ndarray) -> list[int]:
    """Positions in `ids`, most urgent first: the last generated.

    Where ids are in forward order already (the front end's are), they settle the order within a step,
    whose members scatter by less than anybody should act on.
    """
    by_time = sorted(range(len(ids)), key=lambda k: (-from_first[k], ids[k]))
    positions = np.argsort(np.argsort(from_first, kind="stable"), kind="stable")
    forward_ids = len(ids) < 3 or np.corrcoef(positions, np.arange(len(ids)))[0, 1] < -0.9
    if not forward_ids:
        return by_time
    order: list[int] = []
    for step in _split(from_first[by_time]):
        order.extend(sorted(by_time[step.first : step.last + 1], key=lambda k: ids[k]))
    return order


def _forward_gap(rows: list[_Iteration], gradient0: int, ids: list[int]) -> float:
    """The least time from gradient 0 of one iteration to the first gradient of the next."""
    known = set(ids)
    gaps = []
    for row, following in itertools.pairwise(rows):
        starts = [time for gradient, time in following.times.items() if gradient in known]
        if gradient0 in row.times and starts:
            gaps.append(min(starts) - row.times[gradient0])
    return max(0.0, float(np.quantile(gaps, 0.1))) if gaps else 0.0


def find_steps(profile: Profile) -> list[Step]:
    """The stepwise pattern (paper, section 2.2), most urgent step first."""
    return _split(np.array([gradient.generation_s for gradient in profile.gradients]))


def _split(times: np.ndarray) -> list[Step]:
    """Cuts falling times where the gaps are of another order of magnitude than within a step.

    The threshold is the widest break, as a ratio, in the sorted gaps; gaps below a five-hundredth of the whole
    are taken as equal, because they are scheduling noise. Without a clear break (a factor of 3) every gap above that
    counts.
    """
    gaps = times[:-1] - times[1:]
    floor = max(float(times[0] - times[-1]) / 500, 1e-9)
    ranked = np.sort(np.maximum(gaps, floor))
    threshold = floor
    if len(ranked) > 1:
        ratios = ranked[1:] / ranked[:-1]
        widest = int(np.argmax(ratios))
        if ratios[widest] >= 3:
            threshold = float(np.sqrt(ranked[widest] * ranked[widest + 1]))
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(gaps > threshold)), len(times)]
    steps = []
    for first, end in itertools.pairwise(cuts):
        before = float(times[end]) if end < len(times) else 0.0
        steps.append(Step(first, end - 1, float(times[first]), float(times[first]) - before))
    return steps
