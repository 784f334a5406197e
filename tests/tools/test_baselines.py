"""What else could be done: the time to an accuracy, and the ways that the job knows."""

from __future__ import annotations

import pytest

from tools import baselines
from tools.baselines import EVERY, ITERATIONS, PLAIN, WAYS, Trained


def trained(way: str, iteration_s: float, right: list[float]) -> Trained:
    return Trained(way, 1e8, [iteration_s] * ITERATIONS, right)


def test_the_time_to_an_accuracy_is_that_of_the_first_look_that_has_it() -> None:
    run = trained(PLAIN, 0.5, [0.1, 0.3, 0.2, *[0.4] * (ITERATIONS // EVERY - 3)])
    assert run.seconds_to(0.3) == pytest.approx(2 * EVERY * 0.5)
    assert run.seconds_to(0.4) == pytest.approx(4 * EVERY * 0.5)
    assert run.seconds_to(0.5) is None


def test_the_accuracy_to_reach_is_that_of_plain_training_at_three_quarters() -> None:
    others = trained("fp16", 0.2, [0.9] * 8)
    assert baselines.target([others, trained(PLAIN, 0.5, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8])]) == 0.6


def test_looks_fall_on_averages_of_local_training() -> None:
    assert not ITERATIONS % EVERY
    assert not any(EVERY % way.size for way in WAYS.values() if way.hook == "local")
