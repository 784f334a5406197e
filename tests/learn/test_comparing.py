"""Cuts compared by stretches that follow one another: what drifts is no difference between them."""

from __future__ import annotations

import numpy as np
import pytest

from prophet.core.cut import Cut
from prophet.learn.judge import COMPARED, LEAST_ERROR, MOST_STRETCHES, Comparisons

A, B, C = (Cut.uniform(size << 10) for size in (256, 512, 1024))
TAKES_S = {A: 0.44, B: 0.40, C: 0.42}


def job(
    *stretches: tuple[Cut, int], scatter: float = 0.0, drift: float = 0.0, alike: float = 0.0, seed: int = 1
) -> Comparisons:
    """That had these cuts for so many iterations each, the whole of which take longer by `drift` at the end. `alike`:
    how much of its deviation an iteration has from the one before it; below zero it makes up for that."""
    chance = np.random.default_rng(seed)
    passed, total = 0, sum(count for _, count in stretches)
    subject = Comparisons()
    off = chance.normal(size=total)
    for place in range(1, total):
        off[place] += alike * off[place - 1]
    for cut, count in stretches:
        slower = 1 + drift * np.arange(passed, passed + count) / total
        times_s = TAKES_S[cut] * slower * (1 + scatter * off[passed : passed + count])
        passed += count
        subject.begins(cut)
        for seen in range(3, count + 1):
            subject.take(cut, times_s[max(0, seen - 49) : seen])
    return subject


def test_cuts_are_compared_through_those_between_them() -> None:
    compared = job((A, 10), (B, 10), (C, 10)).against(C)
    assert set(compared) == {A, B}
    assert compared[A].share == pytest.approx(np.log(0.44 / 0.42))
    assert compared[B].share == pytest.approx(np.log(0.40 / 0.42))
    assert compared[B].error == pytest.approx(LEAST_ERROR)
    assert compared[A].error == pytest.approx(LEAST_ERROR * np.sqrt(2)), "which is two comparisons away"


def test_what_drifts_is_no_difference() -> None:
    """Iterations take a third longer after a while; by what was measured first, any cut would be better by then."""
    compared = job((B, 90), (A, 90), drift=0.3).against(A)
    assert compared[B].share == pytest.approx(np.log(0.40 / 0.44), abs=0.03)
    turns = job(*[(cut, 20) for _ in range(5) for cut in (B, A)], drift=0.3).against(A)
    assert turns[B].share == pytest.approx(np.log(0.40 / 0.44), abs=0.03)


def test_a_cut_that_comes_back_is_known_better_than_before() -> None:
    errors = [
        job(*[(cut, 2 * COMPARED) for _ in range(turns) for cut in (A, B)], scatter=0.05).against(A)[B].error
        for turns in (1, 3)
    ]
    assert errors[1] == pytest.approx(errors[0] / np.sqrt(5), rel=0.25), "five comparisons instead of one"


@pytest.mark.parametrize("alike", [-0.4, 0.0, 0.4])
@pytest.mark.parametrize("count", [8, 2 * COMPARED])
def test_the_errors_are_what_they_are_said_to_be(count: int, alike: float) -> None:
    """Short stretches too, where the same iterations are compared with those before them and those after them."""
    off = []
    for seed in range(200):
        stretches = [(cut, count) for _ in range(3) for cut in (A, B, C)]
        compared = job(*stretches, scatter=0.05, alike=alike, seed=seed).against(A)
        off.append((compared[B].share - np.log(0.40 / 0.44)) / compared[B].error)
    # Of 72 iterations in stretches of 8 it is hard to tell that slow ones come together.
    assert np.std(off) == pytest.approx(1.0, abs=0.4 if alike > 0 else 0.25)
    assert abs(np.mean(off)) < 0.2


def test_too_few_iterations_are_passed_over_and_what_is_around_them_is_still_compared() -> None:
    compared = job((A, 10), (B, 2), (C, 10)).against(A)
    assert set(compared) == {C}
    assert compared[C].share == pytest.approx(np.log(0.42 / 0.44))


def test_what_is_forgotten_is_measured_anew_and_others_stay() -> None:
    subject = job((A, 10), (B, 10))
    subject.forget(B)
    assert subject.against(B) == {} and subject.median_s(B) is None
    subject.take(B, np.full(10, 0.44))
    assert subject.against(B)[A].share == pytest.approx(np.log(0.44 / 0.44))
    subject.begin_anew()
    assert subject.against(B) == {} and subject.median_s(B) is None


def test_a_window_that_begins_anew_within_a_stretch_does_no_harm() -> None:
    subject = job((A, 20), (B, 20), scatter=0.05)
    subject.take(B, np.array([0.5, 0.52, 0.48]))
    subject.take(A, np.full(10, 0.55))
    assert subject.against(A)[B].error > 0


def test_old_stretches_are_dropped() -> None:
    subject = job(*[(cut, 5) for _ in range(MOST_STRETCHES) for cut in (A, B)])
    assert len(subject._stretches) == MOST_STRETCHES
    assert subject.against(B)[A].share == pytest.approx(np.log(0.44 / 0.40))


def test_what_was_asked_before_is_asked_anew_once_more_is_known() -> None:
    subject = job((A, 10), (B, 10))
    before = subject.against(B)[A].share
    assert subject.against(B)[A].share == before
    subject.take(B, np.full(20, 0.44))
    assert subject.against(B)[A].share != before
    subject.left(C, 0.9)
    assert C in subject.against(B)
    subject.forget(A)
    assert A not in subject.against(B)
    subject.begin_anew()
    assert subject.against(B) == {}
