"""Generation times for plans with many deadlines.

Rule of this file: shared code of the policies whose plans expect each gradient at a time; pure functions of a profile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prophet_scheduler.core.profile import Profile

LEAST_SLACK_S = 0.001
"""Minimum slack of a deadline: without it, the queue's timer and a correct prediction are due at the same instant."""


def distinct_times(profile: Profile) -> dict[int, float]:
    """Return generation times in seconds by gradient id, with equal times moved a rounding error apart.

    So the latest gradient to arrive shows which others have arrived, and the first of a step does not stand for all.
    """
    times_s: dict[int, float] = {}
    before = -math.inf
    for gradient, generated in reversed(list(zip(profile.gradient_ids, profile.gradients, strict=True))):
        before = max(generated.generation_s, math.nextafter(before, math.inf))
        times_s[gradient] = before
    return times_s
