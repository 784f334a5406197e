"""The page of the coordinator, and what its synthetic workers see of a real one."""

from __future__ import annotations

import math
from pathlib import Path

from tools import coordinator, kept
from tools.coordinator_clients import WorkerLoad, drive
from tools.provenance import Provenance

DATA = coordinator.CoordinatorData(
    [coordinator.Carried(1000, 300.0, 299.5, 0.0004, 0.0021, 0.25, 0)],
    coordinator.Handed(12, 0.01, 99.0, 0.0006, 0.0018, 13),
    coordinator.Outlived(0.5, 5.0, 1500, 1600, 0.51, 4, (4600, 4601)),
    coordinator.Flooded(1_000_000, 30.0, 990_000, 0.0009, 0.012, 60_000_000, 61_000_000),
    0.4,
)


def test_the_page_has_what_was_measured(tmp_path: Path) -> None:
    provenance = Provenance("2026-01-02", "abc1234", "a machine", 2)
    kept.keep(tmp_path, coordinator.NAME, coordinator.CoordinatorData, DATA, provenance)
    page = coordinator.page(tmp_path)
    assert provenance.line() in page
    assert "| 1,000 | 300 | 300 | 0.40 ms | 2.10 ms | 25% | 0 |" in page
    assert "counted 4,600 of the 4,601 updates" in page
    assert "990,000 of them were read, and refused" in page


def test_percentiles_of_nothing_are_no_numbers() -> None:
    assert all(math.isnan(value) for value in coordinator.percentiles([]))
    assert coordinator.percentiles([1.0, 2.0, 3.0])[0] == 2.0


def test_synthetic_workers_are_served(tmp_path: Path) -> None:
    with coordinator.coordinating(tmp_path) as running:
        seen = drive(WorkerLoad(running.address, coordinator.TOKEN, 0, 3, 0.3, rate=60.0))
        counts = running.end()
    assert seen.updates == len(seen.waits_s) > 5
    assert seen.ungranted == counts["ungranted"] == counts["refused"] == 0
    assert counts["applied"] == seen.updates
