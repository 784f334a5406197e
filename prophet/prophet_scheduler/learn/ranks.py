"""Ranks of blocks whose places are not in forward order.

Rule of this file: from a profile to ranks; no clock, thread or file.

An arena holds gradients in the order in which a model registers its parameters, usually forward order. So a block's
place (its id) is its rank, and noisy times cannot improve on it. But if a model registers its last layers first, the
wrong blocks are sent first. Backward reveals this: it ends with the gradients that forward needs first. So if the steps
of backward show another order, blocks are ranked by generation time.

A rank belongs to a block of one cut and does not apply to another cut: ids without a rank would be ranked by place
among blocks ranked by number. Generation times, however, carry over from one cut to another.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from prophet_scheduler.core.arena import completions_at
from prophet_scheduler.core.choice import IterationEnd
from prophet_scheduler.core.cut import Block, Cut, blocks_of
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import GradientProfile, Profile, find_steps

ALIKE = 0.5
"""Minimum correlation of ranks with the steps of backward for ranks to stay. Swapped modules correlate less; a gradient
that is late once, or out of order within its layer, correlates more."""


def ranks_of(profile: Profile, ranks: Mapping[int, int]) -> Mapping[int, int]:
    """Return ranks by id, the most urgent lowest: `ranks`, or ranks from the steps of a profile that contradicts them.

    `profile` describes the blocks to rank, as learned, sorted by generation time. An id without a rank is its own rank,
    so an empty map means the order of places.
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
        # Within a step only places show the order; if they fall from step to step, they fall within a step, too.
        if before > own > after:
            each.reverse()
    order = list(itertools.chain(*members))
    # If one step holds nearly all blocks, the correlation is small although the order may be the same.
    same = order == sorted(ids, key=lambda id_: ranks.get(id_, id_))
    return ranks if same else {id_: rank for rank, id_ in enumerate(order)}


def ranks_under(
    blocks: Sequence[Block], profile: Profile, before: Mapping[int, int] | None = None
) -> Mapping[int, int]:
    """Return ranks by id of these blocks, from a profile of any blocks of the same arena; empty if places are ranks.

    `before`: earlier ranks of the same blocks, which stay unless the profile contradicts them.
    """
    ids = [block.id for block in blocks]
    rows = sorted(zip(completions_at(profile, ids), blocks, strict=True), key=lambda row: (-row[0], row[1].id))
    generated = tuple(GradientProfile(f"block{block.id}", block.size_bytes, time_s) for time_s, block in rows)
    return ranks_of(Profile(profile.name, generated, tuple(block.id for _, block in rows)), before or {})


class BlockOrder:
    """Order of a job's blocks, learned under each of its cuts."""

    def __init__(self) -> None:
        self.known = False
        """True once the order under the cut in force has been learned."""
        self._ranks: Mapping[int, int] = {}
        self._ranks_of: dict[Cut, Mapping[int, int]] = {}
        self._reordered = False
        self._held: list[IterationEnd] = []
        """The job's first iterations, held until the order of blocks is known."""

    def recut(self, cut: Cut | None, profile: Profile | None) -> None:
        """Switch to another cut, ranked by its own past or by `profile`, which may have any blocks of the arena."""
        self._held.clear()
        self._ranks, self.known = self._ranks_under(cut, profile) if cut is not None else {}, False

    def _ranks_under(self, cut: Cut, profile: Profile | None) -> Mapping[int, int]:
        if cut in self._ranks_of or profile is None or not any(self._ranks_of.values()):
            return self._ranks_of.get(cut, {})
        return ranks_under(blocks_of([profile.total_bytes], [""], cut), profile)

    def learn(self, cut: Cut, profile: Profile | None) -> None:
        """Learn the order of the present blocks from their profile, if any."""
        if profile is None:
            return
        before, self._ranks = self._ranks, ranks_of(profile, self._ranks)
        self._ranks_of[cut] = self._ranks
        self.known = True
        self._reordered = self._reordered or self._ranks != before

    def of_plan(self, plan: Plan) -> Plan:
        """Return the plan with the ranks of the present blocks."""
        push, pull = (replace(lane, order=self._ranks) for lane in (plan.push, plan.pull))
        return replace(plan, push=push, pull=pull)

    def counted(self, cut: Cut, ended: Sequence[IterationEnd]) -> Sequence[IterationEnd]:
        """Return the iterations that count; under `cut`, which is in force, only those with its blocks in order."""
        if not self._ranks_of:
            self._held += ended
            return ()
        before = [one for one in ended if one.cut != cut]
        under = [one for one in ended if one.cut == cut]
        if self._reordered:
            self._held.clear()
            if under:
                under, self._reordered = under[1:], False  # The first one began in the old order.
        ended = [*before, *self._held, *under]
        self._held.clear()
        return ended
