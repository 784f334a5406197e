"""The simulator against real runs: what is within bounds, and which runs are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.records import Results, read_results, write_results
from prophet_scheduler.lab.simulated_session import simulate_session
from prophet_scheduler.lab.simulator_error import FILE
from support.configs import REPLAY, written
from tools import kept, studies, validate
from tools.figures import Compared, compared
from tools.kept import Study

ROOT = Path(__file__).parents[2]


def cells(*simulated_s: float) -> list[Compared]:
    return [Compared(f"p{number}", "250mbit", 1.0, time_s) for number, time_s in enumerate(simulated_s)]


def test_nine_in_ten_cells_are_near_and_none_is_far() -> None:
    near = [1.0] * 9
    assert validate.is_good(cells(*near, 1.15))
    assert not validate.is_good(cells(*near[:8], 1.15, 0.85))
    assert not validate.is_good(cells(*near, 0.75))
    assert not validate.is_good([]), "nothing compared is nothing shown"


def test_a_run_is_simulated_too_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real run is a simulated one here, 5% slower."""

    def run(experiment: Any, folder: Path) -> int:
        simulate_session(experiment, folder)
        results = read_results(folder / "results.json").as_json()
        for shown in results["cells"][0]["policies"].values():
            shown["iteration_s"]["at_rest"] *= 1.05
        write_results(Results.model_validate(results), folder / "results.json")
        return 0

    monkeypatch.setattr(studies, "run_session", run)
    arguments = ["--config", str(written(REPLAY, tmp_path)), "--out", str(tmp_path / "out")]
    assert validate.main([*arguments, "--results", str(tmp_path)]) == 0
    stored = kept.kept(tmp_path, validate.NAME, Study)
    assert stored is not None
    rows = compared(stored[1].points)
    assert [row.error for row in rows] == pytest.approx([1 / 1.05 - 1] * 2)


def test_the_packaged_file_is_what_the_data_gives(tmp_path: Path) -> None:
    assert validate.main(["--errors", str(tmp_path / "e.json"), "--results", str(ROOT / kept.RESULTS)]) == 0
    text = (tmp_path / "e.json").read_text(encoding="utf-8")
    assert text == FILE.read_text(encoding="utf-8"), f"{FILE.name} is out of date: make pages"
    assert text.count('"prophet"') == 1


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main(["--errors", str(tmp_path / "none" / "e.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
