"""The cost of watching: measured on a model that is small enough for a test."""

from __future__ import annotations

import atexit

import pytest
import torch
from torch import nn

from prophet_byteps import hook
from tools import guard


def test_costs_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "REPEATS", 2)
    monkeypatch.setattr(hook, "_loaded", None)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(30)))
    cost = guard.cost_of("small", model, torch.randn(2, 3, 4))
    assert (cost.pop("name"), cost.pop("parameters")) == ("small", 60)
    assert len(cost) == 4 and min(cost.values()) > 0
