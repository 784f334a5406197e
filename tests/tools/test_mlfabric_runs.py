"""The time of MLfabric's scheduler."""

from __future__ import annotations

from itertools import product

import pytest

from prophet_mlfabric.studies.tables import RATES
from tools import mlfabric_runs


def test_the_scheduler_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlfabric_runs, "PAPER_SCHEDULING_MS", {10: 30.0, 20: 440.0})
    rows = mlfabric_runs.scheduler_times(seeds=[0])
    assert [(row["rates"], row["aggregators"]) for row in rows] == list(product(RATES, mlfabric_runs.AGGREGATORS))
    assert all(set(row["by_updates_ms"]) == {10, 20} and min(row["by_updates_ms"].values()) > 0 for row in rows)
