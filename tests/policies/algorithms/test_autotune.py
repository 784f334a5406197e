"""The tuning of ByteScheduler, on functions of which the best is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.policies.algorithms.autotune import Tuning, expected_improvement, tune


def bowl(credit: int, partition: int) -> float:
    """Best at a credit of 3 MB and partitions of 500 kB, and worse by orders of magnitude from there."""
    return 1.0 + 0.05 * math.log(credit / 3e6) ** 2 + 0.03 * math.log(partition / 5e5) ** 2


def test_tuning_finds_the_bottom_of_a_bowl_in_its_15_tries() -> None:
    for seed in range(3):
        tuning = tune(bowl, seed=seed)
        assert len(tuning.trials) == 15
        assert tuning.best.seconds == min(trial.seconds for trial in tuning.trials)
        assert tuning.best.seconds < 1.005  # random tries get within 1 to 5 percent


def test_tuning_finds_a_valley_with_a_cliff_despite_noise() -> None:
    """Too little in flight starves the wire, too much delays the urgent; measurements scatter by a percent."""
    noise = np.random.default_rng(5)

    def job(credit: int, partition: int) -> float:
        starved = 1.0 if credit < 1_000_000 else 0.0
        return (1.0 + starved + credit / 40e6 + 60e3 / partition) * float(noise.normal(1.0, 0.01))

    best = tune(job, trials=20, seed=1).best
    assert 1_000_000 <= best.credit_bytes <= 4_000_000
    assert best.partition_bytes >= 500_000


def test_tuning_repeats_itself_and_tries_no_pair_twice() -> None:
    first, second = tune(bowl, seed=7), tune(bowl, seed=7)
    assert first == second
    assert tune(bowl, seed=8).trials != first.trials
    pairs = [(trial.credit_bytes, trial.partition_bytes) for trial in first.trials]
    assert len(set(pairs)) == len(pairs)
    assert all(partition <= credit for credit, partition in pairs)


def test_tuning_stops_when_there_is_nothing_left_to_try() -> None:
    tuning = tune(lambda credit, partition: 1.0, credit_bytes=(4096, 8192), partition_bytes=(4096, 4096), trials=9)
    assert sorted((trial.credit_bytes, trial.partition_bytes) for trial in tuning.trials) == [
        (4096, 4096),
        (8192, 4096),
    ]


def test_of_equally_good_tries_the_first_is_the_best() -> None:
    tuning: Tuning = tune(lambda credit, partition: 2.0, trials=6)
    assert tuning.best is tuning.trials[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trials": 3}, "trials is 3 and initial is 5"),
        ({"initial": 0}, "initial is 0"),
        ({"credit_bytes": (5, 4)}, r"credit_bytes is \(5, 4\); give \(least, most\)"),
        ({"partition_bytes": (0, 4)}, r"partition_bytes is \(0, 4\)"),
        ({"credit_bytes": (1, 2), "partition_bytes": (3, 4)}, "every credit_bytes is below every partition_bytes"),
    ],
)
def test_tuning_refuses_impossible_ranges(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tune(bowl, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_tuning_refuses_an_answer_that_is_no_time(seconds: float) -> None:
    with pytest.raises(UserError, match=r"evaluate gave .* it must give a number above 0"):
        tune(lambda credit, partition: seconds)


def test_improvement_is_expected_between_good_tries_and_not_at_known_or_bad_ones() -> None:
    tried = np.array([[0.0], [0.4], [0.6], [1.0]])
    values = np.array([2.0, 1.0, 1.0, 2.0])
    between, known, edge = expected_improvement(tried, values, np.array([[0.5], [0.4], [0.95]]))
    assert between > 10 * known
    assert between > 10 * edge


def test_without_any_difference_no_improvement_is_expected() -> None:
    tried = np.array([[0.0, 0.0], [1.0, 1.0]])
    assert expected_improvement(tried, np.array([3.0, 3.0]), np.array([[0.5, 0.5]])) == pytest.approx([0.0])
