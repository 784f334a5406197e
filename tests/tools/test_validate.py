"""The simulator against real runs: what is counted, the page, and which runs make one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.records import Results, read_results, write_results
from prophet_scheduler.lab.simulated_session import simulate_session
from support.configs import REPLAY, changed, loaded, written
from support.results import cell, policy
from tools import kept, validate
from tools.kept import Point
from tools.validate import compare, verdict


def points(real: dict[str, float], simulated: dict[str, float]) -> list[Point]:
    cells = [cell(**{name: policy(value) for name, value in times.items()}) for times in (real, simulated)]
    return [Point(cells[0], 2, cells[1])]


def test_the_cells_within_the_bounds_are_counted() -> None:
    real = {f"p{i}": 1.0 for i in range(10)}
    close = {**real, "p0": 1.15}
    cells = compare(points(real, close))
    assert cells[0].bandwidth == "250mbit"
    assert cells[0].error == pytest.approx(0.15)
    assert verdict(cells).good
    assert not verdict(compare(points(real, {**close, "p1": 0.85}))).good
    assert not verdict(compare(points(real, {**real, "p1": 0.75}))).good
    assert not verdict([]).good, "nothing compared is nothing shown"


def test_a_run_is_kept_and_makes_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real run is a simulated one here, 5% slower."""

    def run(experiment: Any, folder: Path) -> int:
        simulate_session(experiment, folder)
        results = read_results(folder / "results.json").as_json()
        for shown in results["cells"][0]["policies"].values():
            shown["iteration_s"]["at_rest"] *= 1.05
        write_results(Results.model_validate(results), folder / "results.json")
        return 0

    monkeypatch.setattr(validate, "run_session", run)
    config = written(REPLAY, tmp_path)
    assert validate.validate(config, tmp_path / "out", None, results=tmp_path) == 0
    text = (tmp_path / "validation.md").read_text()
    assert "**2 of 2 cells are within 10%; the worst is 4.8% off.**" in text and "| -4.8% |" in text
    assert text == validate.page(tmp_path) and "| latency of a message | 0.14 ms |" in text
    record = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert list(record) == ["schema", "cells", "within_10_percent", "worst", "good", "count"]
    assert (record["count"], len(record["cells"]), record["good"]) == (2, 2, True)


def test_results_from_elsewhere_are_compared_and_make_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(REPLAY, tmp_path)
    simulate_session(loaded(REPLAY, tmp_path), tmp_path / "real")
    real = ["--real", str(tmp_path / "real" / "results.json")]
    arguments = ["--out", str(tmp_path / "out"), "--results", str(tmp_path), *real]
    assert validate.main(["--config", str(config), *arguments]) == 0
    assert not (tmp_path / validate.PAGE).exists() and not kept.data_file(tmp_path, validate.NAME).exists()
    other = written(changed(REPLAY, "cluster.bandwidth", "1gbit"), tmp_path)
    capsys.readouterr()
    assert validate.main(["--config", str(other), *arguments]) == 2
    assert "of another config" in capsys.readouterr().err
