"""Steps of a profile: many gradients appear at nearly the same moment, and then none for a while.

Rule of this file: conversion of generation times to steps (Prophet, ICPP 2021, section 2.2).
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
    """Gradients with indices `first` to `last` (`first` is the most urgent) that appear together.

    `time_s` is when the last of them is generated, after backward began; `gap_s` is the time since the step before.
    """

    first: int
    last: int
    time_s: float
    gap_s: float


def find_steps(profile: Profile) -> list[Step]:
    """Return the stepwise pattern of a profile (paper, section 2.2), most urgent step first."""
    return split_times(np.array([gradient.generation_s for gradient in profile.gradients]))


def split_times(times: NDArray[Any]) -> list[Step]:
    """Split descending times into steps at the gaps that are much larger than those within a step.

    The threshold lies in the widest break of the sorted gaps, taken as ratios. Gaps below 1/500 of the total are noise
    of the system's scheduler and count as equal. Without a clear break (a factor of 3), each gap above 1/500 separates
    steps.
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
