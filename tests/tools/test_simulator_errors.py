"""The packaged errors are those of the kept validation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prophet_scheduler.lab.simulator_error import FILE
from tools import kept, simulator_errors

ROOT = Path(__file__).parents[2]


def test_the_packaged_file_is_what_the_data_gives() -> None:
    text = simulator_errors.errors_text(ROOT / kept.RESULTS)
    assert text == FILE.read_text(encoding="utf-8"), f"{FILE.name} is out of date: make pages"
    ratios = json.loads(text)["ratios"]
    assert len(ratios["prophet"]) >= 4 and all(0.3 < ratio < 3 for several in ratios.values() for ratio in several)


def test_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulator_errors.main(["--results", str(ROOT / kept.RESULTS), "--out", str(tmp_path / "e.json")]) == 0
    assert (tmp_path / "e.json").read_text() == FILE.read_text()
    assert simulator_errors.main(["--out", str(tmp_path / "none" / "e.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
