"""Observations of synthetic workers of a real coordinator."""

from __future__ import annotations

from pathlib import Path

from tools.coordinator import WorkerLoad, coordinating, drive


def test_synthetic_workers_are_served(tmp_path: Path) -> None:
    with coordinating(tmp_path) as running:
        seen = drive(WorkerLoad(running.address, 0, 3, 0.3, rate=60.0))
        counts = running.end()
    assert seen.updates == len(seen.waits_s) > 5
    assert counts["ungranted"] == counts["refused"] == 0
    assert counts["applied"] == seen.updates
