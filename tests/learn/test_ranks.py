"""Ranks of blocks: their places, unless backward shows another order."""

from __future__ import annotations

import random

import pytest

from prophet_scheduler.core.cut import UNIT_BYTES, Cut, blocks_of
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.learn.ranks import ranks_of, ranks_under


def learned(ids: list[int], times: list[float]) -> Profile:
    """Return the profile of blocks in order of generation, the last first."""
    return Profile(
        "learned", tuple(GradientProfile(str(i), 1000, t) for i, t in zip(ids, times, strict=True)), tuple(ids)
    )


IDS = [0, 4, 8, 12, 16, 20, 24, 28]
STEPS = [0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]


def test_places_are_ranks() -> None:
    assert ranks_of(learned(IDS, STEPS), {}) == {}


@pytest.mark.parametrize("seed", range(20))
def test_disorder_within_steps_and_one_late_block_change_nothing(seed: int) -> None:
    chance = random.Random(seed)
    ids = [id_ for first in range(0, 8, 2) for id_ in chance.sample(IDS[first : first + 2], 2)]
    late = ids.pop(chance.randrange(1, 5))
    assert ranks_of(learned([late, *ids], STEPS), {}) == {}


def test_what_is_registered_in_reverse_is_ranked_by_generation() -> None:
    ids = IDS[::-1]
    assert ranks_of(learned(ids, STEPS), {}) == {id_: rank for rank, id_ in enumerate(ids)}


def test_a_decoder_that_is_registered_before_its_encoder() -> None:
    ids = IDS[4:] + IDS[:4]
    assert ranks_of(learned(ids, STEPS), {}) == {id_: rank for rank, id_ in enumerate(ids)}


def test_ranks_that_hold_stay_as_they_are() -> None:
    """Or a new plan would follow from each look at times that scatter."""
    ids = IDS[::-1]
    ranks = ranks_of(learned(ids, STEPS), {})
    swapped = [ids[1], ids[0], *ids[2:]]
    assert ranks_of(learned(swapped, STEPS), ranks) is ranks
    assert ranks_of(learned(IDS, STEPS), ranks) == {id_: rank for rank, id_ in enumerate(IDS)}


def test_within_a_step_places_tell_in_which_direction() -> None:
    ids, times = [20, 24, 28, 8, 12, 16, 0, 4], [0.3, 0.3, 0.3, 0.2, 0.2, 0.2, 0.1, 0.1]
    assert list(ranks_of(learned(ids, times), {})) == IDS[::-1]


@pytest.mark.parametrize("ids", [[7], [8, 4]])
def test_what_comes_at_once_says_nothing(ids: list[int]) -> None:
    assert ranks_of(learned(ids, [0.1] * len(ids)), {}) == {}


def test_a_large_step_beside_a_small_one_changes_nothing_while_places_are_in_order() -> None:
    """Steps then say little of places, as in a model whose last layer has nearly all bytes."""
    ids = list(range(0, 400, 4))
    profile = learned(ids, [0.2] * 2 + [0.1] * 98)
    assert ranks_of(profile, {}) == {}


def test_ranks_of_other_blocks_follow_from_a_profile_of_any() -> None:
    profile = learned([12, 8, 4, 0], [0.4, 0.3, 0.2, 0.1])  # Forward needs the last in place first.
    halves = blocks_of([16 * UNIT_BYTES], [0], Cut.uniform(2 * UNIT_BYTES))
    assert ranks_under(halves, profile) == {id_: rank for rank, id_ in enumerate([14, 12, 10, 8, 6, 4, 2, 0])}
