"""Real BytePS jobs on a real shaped network, started as a user starts them: the few slow tests."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.programs import prophet_run

pytestmark = [pytest.mark.engine, pytest.mark.netns]

CONFIG = """
name: short
job: {kind: digits, iterations: 24, warmup: 4, target_accuracy: 0.2}
cluster: {workers: 2, servers: 1, bandwidth: 400mbit}
policies: [stock, fifo, p3, bytescheduler, prophet, {name: many-messages, base: prophet, partition_bytes: 32KiB}]
time_limit_s: 180
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("job")


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    out = prophet_run(CONFIG, folder, limit_s=1200)
    assert {path.name for path in out.iterdir()} == {"results.json", "runs"}
    loaded: dict[str, Any] = json.loads((out / "results.json").read_text())
    return loaded


def test_every_policy_trains_the_same_model_bit_for_bit(results: dict[str, Any]) -> None:
    policies = results["cells"][0]["policies"]
    assert list(policies) == ["stock", "fifo", "p3", "bytescheduler", "prophet", "many-messages"]
    digests = {name: policy["weights_sha256"] for name, policy in policies.items()}
    assert len(set(digests.values())) == 1, digests


def test_prophet_planned_and_nothing_was_forced(results: dict[str, Any]) -> None:
    agent = results["cells"][0]["policies"]["prophet"]["agent"]
    assert agent["plans"] >= 1
    assert agent["network"]["bandwidth"] > 0


def test_results_have_the_promised_form(results: dict[str, Any]) -> None:
    assert results["schema"] == 2
    cell = results["cells"][0]
    assert cell["setting"] == {"bandwidth": 400e6}
    assert set(cell["ratios"]) == set(cell["policies"])
    for policy in cell["policies"].values():
        assert set(policy["iteration_s"]) >= {"mean", "at_rest", "median", "p10", "p90"}
        assert policy["samples_per_s"] > 0
        assert len(policy["repeats"]) == 1


def test_memory_does_not_grow_with_the_messages(results: dict[str, Any], folder: Path) -> None:
    """Stock ps-lite kept some 40 kB of every message: 50 MB in these nine iterations, of 140 messages each way."""
    assert "many-messages" in results["cells"][0]["policies"]
    for worker in (0, 1):
        path = folder / "out" / "runs" / "cell0" / "many-messages-repeat1" / f"worker{worker}.json"
        resident = json.loads(path.read_text())["resident_bytes"]
        assert resident[-1] - resident[len(resident) // 2] < 15e6, resident


def test_nothing_is_left_behind(results: dict[str, Any], folder: Path) -> None:
    assert results["schema"] == 2
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert "prophet" not in links
    # Every process of a run works in the run's folder.
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if folder in Path(process.cwd()).parents:
                left.append(process)
    assert left == []
