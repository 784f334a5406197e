"""Tests of tools/observed.py: gains by means, and which predictions count."""

from __future__ import annotations

import pytest

from prophet_scheduler.core.status import ObservedTimes
from tools.observed import COUNTED, ITERATIONS, JOBS, STARTING, UNDER_PROPHET, WatchedRun, changes_of, errors

TIMES = ObservedTimes(iteration_s=1.0, backward_s=0.2, network_s=0.5, others_s=0.0, error_s=0.01, looks=10)


def taken(rest_s: float, iterations: int = ITERATIONS) -> list[float]:
    return [9.0] * (iterations - COUNTED) + [rest_s] * COUNTED


def test_a_gain_is_of_means_of_the_last_iterations_and_in_samples() -> None:
    runs = {"": taken(1.0), "prophet": taken(0.5, UNDER_PROPHET), "larger-batch": taken(1.6)}
    run = WatchedRun(JOBS[0], TIMES, {"prophet": 1.8, "larger-batch": 1.5, "low-rank": 3.0}, runs)
    assert set(run.gains) == {"prophet", "larger-batch"}
    assert run.gains["prophet"] == pytest.approx((1.8, 2.0)) and run.gains["larger-batch"] == pytest.approx((1.5, 1.25))
    learned = UNDER_PROPHET - COUNTED - STARTING
    assert run.mean_s("prophet") == pytest.approx((9.0 * learned + 0.5 * COUNTED) / (learned + COUNTED))
    assert errors([run]) == [pytest.approx(0.1), pytest.approx(0.2)]


def test_each_job_is_run_with_changes_of_its_own() -> None:
    for job in JOBS:
        changes = changes_of(job)
        assert ("kept" in changes) == (job.way == "fsdp2")
        faster, _, _ = changes["twice-the-rate"]
        assert faster.rate_bps == 2 * job.rate_bps and faster.way == job.way
