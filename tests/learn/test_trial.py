"""A cut that is far worse is left after an iteration or two; one that may be better is not."""

from __future__ import annotations

import random

import pytest

from prophet.learn.trial import LEAST, TRIED, WARM_UP, TrialRule


def usual(seconds: float, count: int = 10, scatter: float = 0.1) -> TrialRule:
    """Of a job that has had so many iterations."""
    chance = random.Random(5)
    trial = TrialRule()
    for _ in range(WARM_UP + count):
        took_s = seconds * chance.uniform(1 - scatter, 1 + scatter)
        assert not trial.iteration(took_s, took_s)
    return trial


def left_after(trial: TrialRule, *averages_s: float) -> int | None:
    """How many of these iterations under another cut it takes; None where that stays."""
    trial.begins()
    for count, seconds in enumerate(averages_s, 1):
        if trial.iteration(seconds, seconds):
            return count
    return None


@pytest.mark.parametrize(
    ("share", "count"), [(2.5, 1), (1.6, 1), (1.4, 2), (1.2, 3), (1.12, 5), (1.05, None), (0.8, None)]
)
def test_the_worse_it_is_the_sooner_it_is_left(share: float, count: int | None) -> None:
    assert left_after(usual(1.0, scatter=0.01), *[share] * (2 * TRIED)) == count


def test_where_times_scatter_it_must_be_worse_than_all_before_it() -> None:
    trial = TrialRule()
    for took_s in [1.0] * (WARM_UP + 5) + [1.8] + [1.0] * 3:
        trial.iteration(took_s, took_s)
    assert left_after(trial, *[1.7] * TRIED) is None
    trial = usual(1.0)
    assert left_after(trial, 1.9, 1.9) == 1


def test_one_long_iteration_among_good_ones_is_no_reason() -> None:
    assert left_after(usual(1.0), 1.3, 0.9, 1.4, 1.4, 1.4) is None


def test_an_iteration_in_which_the_program_did_something_else_is_not_blamed_on_blocks() -> None:
    trial = usual(1.0)
    trial.begins()
    assert not trial.iteration(30.0, 0.9)


def test_nothing_is_left_before_anything_is_usual() -> None:
    trial = usual(1.0, count=LEAST - 1)
    assert left_after(trial, 5.0, 5.0) is None


def test_after_going_back_the_next_cut_is_compared_with_the_same_iterations() -> None:
    trial = usual(1.0)
    assert left_after(trial, 2.0) == 1
    assert not trial.under_way
    assert left_after(trial, 1.7) == 1
    assert left_after(trial, 0.9, 0.9, 0.9, 0.9, 0.9) is None
    assert not trial.under_way
    assert left_after(trial, 1.5) == 1, "of 0.9 by now"


def test_of_two_in_a_row_both_are_compared_with_what_was_before_the_first() -> None:
    trial = usual(1.0)
    assert left_after(trial, 1.3) is None
    assert trial.under_way
    assert left_after(trial, 1.4, 1.4) == 2
