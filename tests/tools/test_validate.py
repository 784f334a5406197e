"""The simulator against real runs: how cells are compared and what is good enough."""

from __future__ import annotations

from typing import Any

import pytest

from prophet.core.errors import UserError
from tools.validate import compare, verdict


def results(times: dict[str, float], bandwidth: float = 250e6) -> dict[str, Any]:
    policies = {name: {"iteration_s": {"median": value}} for name, value in times.items()}
    return {"cells": [{"setting": {"bandwidth": bandwidth}, "policies": policies}]}


def test_validation_counts_the_cells_within_its_bounds() -> None:
    real = {f"p{i}": 1.0 for i in range(10)}
    close = {**real, "p0": 1.15}
    cells = compare(results(real), results(close))
    assert cells[0]["bandwidth"] == "250mbit"
    assert cells[0]["error"] == pytest.approx(0.15)
    assert verdict(cells)["good"]
    assert not verdict(compare(results(real), results({**close, "p1": 0.85})))["good"]
    assert not verdict(compare(results(real), results({**real, "p1": 0.75})))["good"]
    with pytest.raises(UserError, match="of another config"):
        compare(results(real), results(real, 1e9))
