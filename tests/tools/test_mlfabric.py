"""The time of MLfabric's scheduler."""

from __future__ import annotations

import pytest

from prophet_mlfabric.studies.tables import RATES
from tools import mlfabric


def test_the_scheduler_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlfabric, "PAPER_SCHEDULING_MS", {10: 30.0, 20: 440.0})
    times = mlfabric.scheduler_times(repeats=1)
    assert set(times) == {(rates, aggregators) for rates in RATES for aggregators in mlfabric.AGGREGATORS}
    assert all(set(row) == {10, 20} and min(row.values()) > 0 for row in times.values())
