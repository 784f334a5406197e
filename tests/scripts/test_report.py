"""Tests of the scripts' reports: digests are equal exactly if the bits are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts.report import report


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def digests(weights: Any, **logged: Any) -> dict[str, str]:
    report(weights, **logged)
    result: dict[str, str] = json.loads(Path("result.json").read_text())
    return result


def test_one_bit_makes_a_difference() -> None:
    model = torch.nn.Linear(3, 2)
    first = digests(model, losses=[0.5, 0.25])
    assert digests(model, losses=[0.5, 0.25]) == first
    with torch.no_grad():
        model.weight[0, 0] = torch.nextafter(model.weight[0, 0], torch.tensor(9.0))
    second = digests(model, losses=[0.5, 0.25])
    assert second["losses"] == first["losses"]
    assert second["weights"] != first["weights"]


def test_every_dtype_counts() -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.int64):
        assert digests([torch.tensor([1], dtype=dtype)]) != digests([torch.tensor([2], dtype=dtype)])


@pytest.mark.parametrize("value", [[float("nan")], [], torch.tensor([float("inf")])])
def test_what_shows_nothing_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="losses"):
        report([1.0], losses=value)
