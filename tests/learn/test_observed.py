"""Times of a job that is only watched, from looks whose medians can be computed by hand."""

from __future__ import annotations

import pytest

from prophet_scheduler.learn.observed import FIRST, LEAST, TimedIteration, times_of


def looks(*waited_s: float, every: int = 1) -> list[TimedIteration]:
    """Return a look for each `every` iterations of 0.5 s, 0.125 s of it in backward, from the first that counts."""
    numbers = [FIRST + place * every for place in range(len(waited_s))]
    return [
        TimedIteration(number, 100 + 0.5 * number, 0.125, wait) for number, wait in zip(numbers, waited_s, strict=True)
    ]


def test_one_rank_alone_takes_all_waits_for_the_networks() -> None:
    times = times_of(looks(0.2, 0.1, 0.3, 0.2, 0.2, every=10))
    assert times is not None and times.looks == 5
    assert times.iteration_s == pytest.approx(0.5) and times.backward_s == 0.125
    assert times.network_s == 0.2 and times.others_s == 0
    assert times.share == pytest.approx(0.4)
    assert times.error_s == pytest.approx((0.02 / 4 / 5) ** 0.5), "two are off by 0.1 s"


def test_what_the_slowest_rank_waits_is_the_networks_and_the_rest_is_for_the_slowest() -> None:
    mine = looks(0.3, 0.3, 0.3, 0.3, 0.3)
    others = [{FIRST + place: wait for place in range(5)} for wait in (0.25, 0.05)]
    times = times_of(mine, others)
    assert times is not None
    assert times.network_s == pytest.approx(0.05) and times.others_s == pytest.approx(0.25)
    assert times_of(mine, [dict.fromkeys(range(20), 0.9)]) == times_of(mine), "this rank may be the slowest"


def test_iterations_that_a_rank_did_not_see_do_not_count() -> None:
    mine = looks(*[0.1] * (LEAST + 1))
    seen = {look.iteration: 0.1 for look in mine}
    seen.pop(FIRST + 1)
    times = times_of(mine, [seen])
    assert times is not None and times.looks == LEAST
    assert times.iteration_s == pytest.approx(0.5), "also over the gap"
    seen.pop(FIRST)
    assert times_of(mine, [seen]) is None


def test_first_iterations_do_not_count() -> None:
    cold = [TimedIteration(number, 10.0 * number, 5.0, 5.0) for number in range(1, FIRST)]
    warm = looks(*[0.1] * LEAST)
    assert times_of(cold + warm) == times_of(warm)
    assert times_of(cold * 3) is None
