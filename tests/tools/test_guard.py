"""The cost of watching: measured on a model that is small enough for a test, and written as a page."""

from __future__ import annotations

import atexit
from pathlib import Path

import pytest
import torch
from torch import nn

from prophet_byteps import hook
from tools import guard, kept
from tools.provenance import Provenance


def test_costs_are_measured_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(guard, "REPEATS", 2)
    monkeypatch.setattr(hook, "_loaded", None)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    cost = guard.measure("small", model, torch.randn(2, 3, 4))
    assert cost.parameters == 60
    assert cost.forward_s > 0
    assert cost.watched_s > 0
    assert cost.step_s > 0
    assert cost.iteration_s > 0
    provenance = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, "guard", guard.GuardData, guard.GuardData([cost], 2, "2.0", 0.5), provenance)
    written = guard.page(tmp_path)
    assert provenance.line() in written
    assert f"| small | 60 | {1e3 * cost.forward_s:.2f} |" in written
    assert f"{cost.share:.2%}" in written
