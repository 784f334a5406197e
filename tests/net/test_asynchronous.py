"""Asynchronous training on real servers: BytePS's own, and MLfabric's with a coordinator, by `prophet run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.programs import prophet_run

pytestmark = [pytest.mark.engine, pytest.mark.netns]

BOUND = 5
ITERATIONS = 12
CONFIG = f"""
name: apart
engine: byteps_async
job:
  kind: asynchronous
  features: 2048
  learning_rate: 8.0
  iterations: {ITERATIONS}
  warmup: 1
  compute_s: 0.05
  slow_chance: 0.2
  slow_factor: 3
  target_loss: 2.0
cluster:
  workers: 3
  bandwidth: {{default: 100mbit, server0: 100mbit}}
  rate_mix: {{shares: [1.0, 0.2], chances: [0.5, 0.5], period_s: 1, until_s: 60}}
policies:
  - async-stock
  - name: mlfabric
    env:
      PROPHET_LAB_DELAY_BOUND: "{BOUND}"
      PROPHET_PARTITION_BYTES: "16384"
      # On a busy machine nothing may move for a while, and the coordinator may be silent.
      PROPHET_WATCHDOG_S: "30"
      PROPHET_COORDINATOR_BOUND_S: "12"
time_limit_s: 180
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("byteps")
    return prophet_run(CONFIG, tmp_path_factory.mktemp("apart"), limit_s=600, late=True)


@pytest.fixture(scope="module")
def policies(folder: Path) -> dict[str, Any]:
    results = json.loads((folder / "results.json").read_text())
    found: dict[str, Any] = results["cells"][0]["policies"]
    return found


def test_byteps_own_asynchronous_mode_trains(policies: dict[str, Any]) -> None:
    kept = policies["async-stock"]["convergence"]
    assert kept["time_to_loss_s"] > 0
    assert kept["least_loss"] < 2.0
    assert "sent" not in kept or kept["sent"] is None, "it counts nothing"


def test_every_update_is_granted_in_time_and_applied_once(policies: dict[str, Any]) -> None:
    kept = policies["mlfabric"]["convergence"]
    assert kept["time_to_loss_s"] > 0
    assert kept["sent"] + kept["dropped"] == 3 * ITERATIONS
    assert kept["uncoordinated"] == 0
    assert 1 <= kept["greatest_delay"] <= BOUND
    assert kept["applied_otherwise"] == 0


def test_the_coordinator_and_the_workers_count_alike(folder: Path, policies: dict[str, Any]) -> None:
    runs = folder / "runs" / "cell0" / "mlfabric-repeat1"
    status = json.loads((runs / "scheduler.cwd" / "coordinator.json").read_text())
    counts = status["tenants"]["experiment"]
    kept = policies["mlfabric"]["convergence"]
    assert (counts["applied"], counts["dropped"], counts["ungranted"]) == (kept["sent"], kept["dropped"], 0)
    assert counts["greatest_delay"] == kept["greatest_delay"]


def test_the_hook_let_transfers_go_one_way(folder: Path) -> None:
    """Each update is pushed once and pulled at least once: both ways each time would be a third more tasks."""
    runs = folder / "runs" / "cell0" / "mlfabric-repeat1"
    for worker in range(3):
        assert json.loads((runs / f"worker{worker}.status.json").read_text())["stepped_aside"] == ""
        log = (runs / f"worker{worker}.log").read_text()
        assert "Prophet" not in log, log
