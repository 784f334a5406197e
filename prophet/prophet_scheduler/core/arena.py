"""Conversion of a profile of the arena from one cut to another.

Rule of this file: pure functions of a profile and a cut. Times are seconds, sizes bytes.

Prophet learns a job's times per block. Small blocks tell well when each place of the arena is generated, and the times
of larger blocks follow. The converse fails: times of large blocks lack the detail.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.core.profile import GradientProfile, Profile


def profile_under(profile: Profile, cut: Cut) -> Profile:
    """Return the profile that would be learned under `cut`, with the ids of its blocks.

    A block is generated when its most urgent gradient is. Forward times are divided in proportion to bytes.
    """
    gradients = profile.gradients
    rows = []
    ids = []
    for block in blocks_of([gradient.size_bytes for gradient in gradients], [0] * len(gradients), cut):
        parts = ((gradients[piece.gradient], piece.stop - piece.start) for piece in block.pieces)
        forward_s = sum(whole.forward_s * size / whole.size_bytes for whole, size in parts)
        first = gradients[block.pieces[0].gradient]
        rows.append(GradientProfile(f"block{block.id}", block.size_bytes, first.generation_s, forward_s))
        ids.append(block.id)
    return Profile(profile.name, tuple(rows), tuple(ids))


def span_s(profile: Profile) -> float:
    """Return the seconds between the first and the last generation time."""
    return profile.gradients[0].generation_s - profile.gradients[-1].generation_s


def at_pace(profile: Profile, factor: float) -> Profile:
    """Return the profile with all computing times multiplied by `factor`."""
    return replace(
        profile,
        gradients=tuple(
            replace(g, generation_s=g.generation_s * factor, forward_s=g.forward_s * factor) for g in profile.gradients
        ),
    )


def pace_of(newest: Profile, finest: Profile) -> float:
    """Return the ratio of computing time in `newest` to that in `finest`, a more detailed profile of the same arena."""
    known = generations_at(finest, newest.gradient_ids)
    before_s = known[0] - known[-1]
    return span_s(newest) / before_s if before_s > 0 else 1.0


def generations_at(profile: Profile, ids: Sequence[int]) -> list[float]:
    """Return the generation time of each place of the arena, from a profile of blocks. `ids` are ascending places.

    A place belongs to the last block that begins at or before it. Times never rise with the place.
    """
    known = profile.gradient_ids
    times = [profile.gradients[max(0, bisect.bisect_right(known, id_) - 1)].generation_s for id_ in ids]
    return list(itertools.accumulate(reversed(times), max))[::-1]


def completions_at(profile: Profile, ids: Sequence[int]) -> list[float]:
    """Return when each block is generated completely. `ids` (ascending) are those of blocks that make up the arena.

    `profile` has other blocks of the same arena: a block is complete once all of the profile's that it overlaps are.
    """
    known = sorted(zip(profile.gradient_ids, (gradient.generation_s for gradient in profile.gradients), strict=True))
    starts = [start for start, _ in known]
    times = []
    for id_, following in zip(ids, [*ids[1:], math.inf], strict=True):
        first = max(0, bisect.bisect_right(starts, id_) - 1)
        after = max(first + 1, bisect.bisect_left(starts, following))
        times.append(max(time_s for _, time_s in known[first:after]))
    return times
