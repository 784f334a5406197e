"""Observations of synthetic workers of a real coordinator."""

from __future__ import annotations

import math
from pathlib import Path

from tools import coordinator
from tools.coordinator_clients import WorkerLoad, drive


def test_percentiles_of_nothing_are_no_numbers() -> None:
    assert all(math.isnan(value) for value in coordinator.percentiles("wait", []).values())
    assert coordinator.percentiles("wait", [1.0, 2.0, 3.0])["wait_p50_s"] == 2.0


def test_synthetic_workers_are_served(tmp_path: Path) -> None:
    with coordinator.coordinating(tmp_path) as running:
        seen = drive(WorkerLoad(running.address, coordinator.TOKEN, 0, 3, 0.3, rate=60.0))
        counts = running.end()
    assert seen.updates == len(seen.waits_s) > 5
    assert seen.ungranted == counts["ungranted"] == counts["refused"] == 0
    assert counts["applied"] == seen.updates
