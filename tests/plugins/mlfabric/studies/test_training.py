"""The SGD problem that MLfabric trains: its mathematics, the cluster's model against a plain loop, convergence."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from prophet_mlfabric.studies.cluster import RR_SYNC, mlfabric_a
from prophet_mlfabric.studies.settings import COMPUTE, NETWORK, Setting
from prophet_mlfabric.studies.tables import replication_savings
from prophet_mlfabric.studies.training import SgdProblem, StepSize, best_step, loss_curves, train
from prophet_scheduler.core.errors import UserError

PROBLEM = SgdProblem.synthetic(samples=400, dimensions=8, seed=3)
SETTING = Setting(COMPUTE["C2"], NETWORK["N1"], workers=10, machines=5, seed=1)


def test_the_gradient_is_the_slope_of_the_loss() -> None:
    model = np.random.default_rng(0).normal(size=8)
    rows = np.arange(400)
    slope = PROBLEM.gradient(model, rows)
    for place in range(8):
        step = np.zeros(8)
        step[place] = 1e-6
        measured = (PROBLEM.loss(model + step) - PROBLEM.loss(model - step)) / 2e-6
        assert slope[place] == pytest.approx(measured, abs=1e-7)


def test_least_loss_is_the_minimum() -> None:
    least = PROBLEM.least_loss()
    assert least < PROBLEM.loss(np.zeros(8))
    model = np.zeros(8)
    for _ in range(4000):
        model = model - 1.0 * PROBLEM.gradient(model, np.arange(400))
    assert PROBLEM.loss(model) == pytest.approx(least, abs=1e-6)
    assert PROBLEM.loss(model) >= least - 1e-12


def test_steps_shrink_with_bound_and_time() -> None:
    assert StepSize(0.5).at(100) == 0.5
    assert StepSize(0.6, 9).at(4) == pytest.approx(0.6 / math.sqrt(36))


def test_training_converges_and_a_seed_determines_the_model() -> None:
    first, again = (train(SETTING, mlfabric_a(8), PROBLEM, StepSize(1.0), 40.0) for _ in range(2))
    least, began = PROBLEM.least_loss(), PROBLEM.loss(np.zeros(8))
    assert first.curve.losses[-1] - least < 0.03 * (began - least)
    assert first.read().tobytes() == again.read().tobytes()
    assert (first.curve, first.record) == (again.curve, again.record)
    assert train(replace(SETTING, seed=2), mlfabric_a(8), PROBLEM, StepSize(1.0), 40.0).read().tobytes() != (
        first.read().tobytes()
    )


def test_a_smaller_delay_bound_needs_fewer_updates() -> None:
    # All have the same large step, with which old updates do harm: only the delays differ at equal counts.
    target, excess, needed = PROBLEM.least_loss() + 0.01, {}, {}
    for bound in (3, 6, None):
        trained = train(SETTING, mlfabric_a(bound), PROBLEM, StepSize(3.0), 40.0, every=1)
        excess[bound] = float(np.mean(trained.curve.losses[100:200])) - PROBLEM.least_loss()
        needed[bound] = trained.curve.updates_to(target)
    assert 3 * excess[3] < excess[6] and 3 * excess[6] < excess[None]
    assert needed[3] < needed[6] < needed[None] == math.inf


def test_curves_of_several_bounds_share_one_constant() -> None:
    curves = loss_curves(SETTING, (4, None), PROBLEM, 1.0, 20.0)
    assert max(curves[4].record.delays) <= 4 < max(curves[None].record.delays)
    assert all(curve.curve.losses[-1] < curve.curve.losses[0] for curve in curves.values())


def test_best_step_reaches_the_target_first() -> None:
    target = PROBLEM.least_loss() * 1.1
    constants = (0.5, 2.0)
    best, trained = best_step(SETTING, RR_SYNC, PROBLEM, constants, target, 30.0)
    times = [
        train(SETTING, RR_SYNC, PROBLEM, StepSize(constant / 10), 30.0, target).curve.time_to(target)
        for constant in constants
    ]
    assert trained.curve.time_to(target) == min(times) == times[constants.index(best)]
    with pytest.raises(UserError, match="give others"):
        best_step(SETTING, RR_SYNC, PROBLEM, (1e-9,), target, 1.0)


def test_a_larger_divergence_bound_puts_more_updates_into_a_message() -> None:
    savings = replication_savings((1.0, 20.0), horizon_s=15.0)
    assert savings[1.0] <= 1.0 < savings[20.0]
