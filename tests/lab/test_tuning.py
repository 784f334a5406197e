"""Tuning in an experiment: the trials that are run, what is kept of them, and what a failed one does."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.results import summarize
from prophet_scheduler.lab.runner import run_experiment
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.session import simulate_session
from support.configs import REPLAY, changed, loaded
from support.fakes import Clock, FakeHost, FakeListener, Script, status, worker_result

TRIALS = 6
TUNED = changed(REPLAY, "policies", ["stock", {"name": "tuned", "base": "bytescheduler", "tune": TRIALS}])


def took_s(env: Mapping[str, str]) -> float:
    """A job that is best off with 1 MiB in flight and partitions of 256 KiB."""
    credit, partition = (int(env.get(name, "1")) for name in ("PROPHET_CREDIT_BYTES", "BYTEPS_PARTITION_BYTES"))
    return 1 + 0.1 * abs(math.log2(credit / 2**20)) + 0.1 * abs(math.log2(partition / 2**18))


def worker(node: str, env: Mapping[str, str]) -> Script:
    if not node.startswith("worker"):
        return Script(code=None)
    files: dict[str, Any] = {"json": worker_result([took_s(env)] * 5)}
    if "PROPHET_STATUS_OUT" in env:
        files["status.json"] = status()
    return Script(6, files=files)


def run(folder: Path, script: Any = worker) -> tuple[CellRuns, FakeHost, FakeListener]:
    clock = Clock()
    host, listener = FakeHost(clock, script), FakeListener()
    (cell,) = run_experiment(loaded(TUNED, folder), folder / "out", host.opened, listener, clock.edges)
    return cell, host, listener


def test_trials_come_first_and_the_best_of_them_is_measured(tmp_path: Path) -> None:
    cell, host, listener = run(tmp_path)
    labels = [line for line in listener.heard if line is not None]
    assert labels == [
        *(f"tuned trial{number + 1}" for number in range(TRIALS)),
        *("stock repeat1", "tuned repeat1", "stock repeat2", "tuned repeat2", "stock recording"),
    ]
    record = cell.runs["tuned"][0].tuning
    assert record is not None
    assert len(record.trials) == TRIALS
    best = min(record.trials, key=lambda trial: trial[2])
    assert (record.credit_bytes, record.partition_bytes) == best[:2]
    measured = [env for name, _, env in host.started[-8:-4] if name == "worker0"]
    assert [[int(env["PROPHET_CREDIT_BYTES"]), int(env["BYTEPS_PARTITION_BYTES"])] for env in measured] == [
        list(best[:2])
    ]
    stock = [env for _, _, env in host.started if "BYTEPS_SCHEDULER" not in env]
    assert not any("BYTEPS_PARTITION_BYTES" in env for env in stock)
    outcomes = summarize(loaded(TUNED, tmp_path), [cell]).cells[0].policies
    assert (outcomes["tuned"].tuning, outcomes["stock"].tuning) == (record, None)


def test_a_trial_that_fails_fails_its_policy_and_no_other(tmp_path: Path) -> None:
    def crashing(node: str, env: Mapping[str, str]) -> Script:
        return Script(1, code=-6) if node == "server0" and "BYTEPS_SCHEDULER" in env else worker(node, env)

    cell, _, listener = run(tmp_path, crashing)
    error = f"tuning: trial 1 of {TRIALS}: server0 ended with status -6: it said nothing"
    assert [outcome.error for outcome in cell.runs["tuned"]] == [error, error]
    assert [outcome.error for outcome in cell.runs["stock"]] == [None, None]
    assert listener.heard.count("tuned trial1") == 1 and "tuned trial2" not in listener.heard


def test_the_simulator_tunes_too_and_the_best_is_at_least_as_good_as_any_trial(tmp_path: Path) -> None:
    results = []
    small = changed(changed(TUNED, "job.total_bytes", "2MB"), "cluster.bandwidth", "20mbit")
    for name in ("one", "two"):
        out = tmp_path / name
        assert simulate_session(loaded(changed(small, "repeats", 1), tmp_path), out) == 0
        results.append(json.loads((out / "results.json").read_text())["cells"][0]["policies"]["tuned"])
    assert results[0] == results[1]
    trials = results[0]["tuning"]["trials"]
    assert len(trials) == TRIALS
    assert results[0]["iteration_s"]["median"] <= 1.05 * min(seconds for _, _, seconds in trials)


@pytest.mark.parametrize(("iterations", "trial"), [(6, 6), (50, 10)])
def test_a_trial_is_no_longer_than_the_job(iterations: int, trial: int, tmp_path: Path) -> None:
    from prophet_scheduler.lab.tuning import trial_cell

    cell = loaded(changed(TUNED, "job.iterations", iterations), tmp_path).cells[0]
    short = trial_cell(cell).job
    assert short.iterations == trial
    assert short.warmup <= trial - 2
