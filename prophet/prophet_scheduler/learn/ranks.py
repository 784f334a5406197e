"""Ranks of blocks whose places are not in forward order.

Rule of this file: from a profile to ranks; no clock, thread or file.

An arena has its gradients in the order in which a model registers its parameters, which is the order of the forward
pass as a rule: so a block's place, its id, is its rank, and no better one can be learned from times that scatter. A
model that registers its last layers first has the wrong blocks sent first. Backward tells: it comes to what forward
needs first at the end. So where the steps of backward show another order, blocks are ranked by when they are generated.

A rank belongs to a block of one cut. What was learned of another says nothing: ids that are not ranked would be ranked
by place among blocks that are ranked by number. When the blocks of another cut are generated, though, is known from
those of this one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np

from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.steps import find_steps

ALIKE = 0.5
"""Correlation of ranks with the steps of backward from which they stay as they are. Modules that swapped places show
less; what comes late once, or in another order within its layer, more."""


def ranks_of(profile: Profile, ranks: Mapping[int, int]) -> Mapping[int, int]:
    """Rank by id, the most urgent lowest: `ranks`, or where the profile does not bear them out those of its steps.

    `profile` is of the blocks to be ranked, as learned in order of generation. An id that has none of the ranks is its
    own rank, so an empty map is the order of places.
    """
    ids = profile.gradient_ids
    steps = find_steps(profile)
    if len(steps) < 2:
        return ranks
    step = np.repeat(np.arange(len(steps)), [each.last - each.first + 1 for each in steps])
    position = np.argsort(np.argsort([ranks.get(id_, id_) for id_ in ids], kind="stable"), kind="stable")
    if np.corrcoef(step, position)[0, 1] >= ALIKE:
        return ranks
    members = [sorted(ids[each.first : each.last + 1]) for each in steps]
    means = [math.inf, *(sum(each) / len(each) for each in members), -math.inf]
    for each, (before, own, after) in zip(members, zip(means, means[1:], means[2:], strict=False), strict=True):
        # Within a step times tell nothing: places do, and where they fall from step to step they fall within one.
        if before > own > after:
            each.reverse()
    return {id_: rank for rank, id_ in enumerate(itertools.chain(*members))}
