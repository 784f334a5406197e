"""The bench of deciding: drawn jobs, and what deciders make of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tools.regret import FAMILIES, FIRST, ITERATION_S, ITERATIONS, ByTuner, Family, draw, figures, run

VALLEY = next(family for family in FAMILIES if family.name == "valley")
CHANGING = next(family for family in FAMILIES if family.name == "changing")


class Knows:
    """Decider that is told the best arm, or stays where it is."""

    def __init__(self, arm: int) -> None:
        self._arm = arm

    def predicted(self, iterations_s: Sequence[float]) -> None: ...

    def ended(self, arm: int, iteration_s: float) -> int:
        return self._arm


def test_a_job_is_its_seeds() -> None:
    once, again, other = draw(VALLEY, 0.04, 1), draw(VALLEY, 0.04, 1), draw(VALLEY, 0.04, 2)
    assert np.array_equal(once.noise, again.noise) and np.array_equal(once.predicted, again.predicted)
    assert not np.array_equal(once.effects, other.effects)


def test_who_knows_the_best_arm_pays_for_one_change_and_no_more() -> None:
    job = draw(VALLEY, 0.0, 1)
    best = int(job.effects[0].argmin())
    found = figures([run(job, Knows(best))])
    changes = 0.0 if best == FIRST else VALLEY.first_cost + float(job.effects[0, FIRST] / job.effects[0, best] - 1)
    assert found.regret[2] == pytest.approx(changes / ITERATIONS, rel=0.1)
    assert found.rests_off == 0.0


def test_who_stays_loses_what_the_first_arm_takes_longer() -> None:
    job = draw(VALLEY, 0.01, 3)
    found = figures([run(job, Knows(FIRST))])
    off = float(job.effects[0, FIRST] / job.effects[0].min() - 1)
    assert found.rests_off == pytest.approx(off)
    assert found.regret == pytest.approx((off, off, off))


def test_a_change_is_told_in_new_predictions_and_counted_for_itself() -> None:
    assert figures([run(draw(VALLEY, 0.01, 1), Knows(2))]).after_change is None
    told = []

    class Told(Knows):
        def predicted(self, iterations_s: Sequence[float]) -> None:
            told.append(tuple(iterations_s))

    assert figures([run(draw(CHANGING, 0.01, 1), Told(2))]).after_change is not None
    assert len(told) == 2 and told[0] != told[1]
    assert all(0.1 * ITERATION_S < seconds < 10 * ITERATION_S for row in told for seconds in row)


@pytest.mark.parametrize(
    ("name", "after_100", "off"),
    [("valley", 0.03, 0.01), ("valley, new keys", 0.07, 0.02), ("far predictions", 0.04, 0.02), ("cliff", 0.03, 0.02)],
)
def test_the_tuner_loses_little(name: str, after_100: float, off: float) -> None:
    """Six jobs at a noise of 4%, which are the same on every machine."""
    family: Family = next(family for family in FAMILIES if family.name == name)
    found = figures(run(draw(family, 0.04, seed), ByTuner(family)) for seed in range(6))
    assert found.regret[1] <= after_100
    assert found.rests_off <= off
