"""The steps of a profile: gradients appear many at nearly the same moment, and then none for a while.

Rule of this file: from generation times to steps (Prophet, ICPP 2021, section 2.2).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.profile import Profile

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Step:
    """Gradients `first`..`last` (indices, first is the more urgent) that appear together.

    `time_s` is when the last of them is there, after backward began; `gap_s` the time since the step before.
    """

    first: int
    last: int
    time_s: float
    gap_s: float


def find_steps(profile: Profile) -> list[Step]:
    """The stepwise pattern (paper, section 2.2), most urgent step first."""
    return split_times(np.array([gradient.generation_s for gradient in profile.gradients]))


def split_times(times: NDArray[Any]) -> list[Step]:
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
