"""Fixtures of the front end's tests."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def later_in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come every RECUT_ROUNDS rounds, as they do once a job's first rounds are over."""
    monkeypatch.setattr("prophet_scheduler.core.cut.EARLY_ROUNDS", 0)
