"""A config measured cell by cell: what is run again, and what is not taken."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import read_results, write_results
from support.configs import REPLAY, written
from support.results import Session, cell, failed, policy
from tools import cells, kept
from tools.kept import Study

POINT = cell(stock=policy(1.7), prophet=policy(0.93))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    made = Session(POINT)
    monkeypatch.setattr(cells, "run_session", made.run)
    return made


def config(folder: Path, *rates: str) -> Path:
    sweep = [{"cluster": {"bandwidth": rate}} for rate in rates]
    return written({**REPLAY, "policies": ["stock", "prophet"], "sweep": sweep}, folder)


def test_cells_that_are_there_are_not_run_again(session: Session, tmp_path: Path) -> None:
    file = config(tmp_path, "250mbit", "1gbit")
    once = cells.measured(file, tmp_path / "out", None, Console())
    assert session.ran == ["cell0", "cell1"]
    assert [dict(point.cell.setting) for point in once.points] == [{"bandwidth": 250e6}, {"bandwidth": 1e9}]
    assert cells.measured(file, tmp_path / "out", None, Console()) == once
    assert session.ran == ["cell0", "cell1"]


def test_a_cell_that_was_refused_is_all_that_is_run_again(session: Session, tmp_path: Path) -> None:
    session.refuses["cell0"] = "bandwidth of worker0: leave the machine idle"
    file = config(tmp_path, "250mbit", "1gbit")
    with pytest.raises(UserError, match="leave the machine idle; run it again"):
        cells.measured(file, tmp_path / "out", None, Console(quiet=True))
    session.refuses.clear()
    assert len(cells.measured(file, tmp_path / "out", None, Console()).points) == 2
    assert session.ran == ["cell0", "cell1", "cell0"]


def test_results_of_another_config_or_with_a_failure_are_not_taken(session: Session, tmp_path: Path) -> None:
    file, out = config(tmp_path, "250mbit"), tmp_path / "out"
    session.run(load_experiment(file), out / "cell0")
    assert cells.earlier(load_experiment(file), out / "cell0") is not None
    assert cells.earlier(load_experiment(file, repeats=7), out / "cell0") is None
    assert cells.earlier(load_experiment(config(tmp_path, "1gbit")), out / "cell0") is None
    assert cells.earlier(load_experiment(file), out / "cell1") is None
    results = read_results(out / "cell0" / "results.json")
    broken = POINT.model_copy(update={"policies": {**POINT.policies, "p3": failed("hung")}})
    write_results(results.model_copy(update={"cells": [broken]}), out / "cell0" / "results.json")
    assert cells.earlier(load_experiment(config(tmp_path, "250mbit")), out / "cell0") is None


def test_a_cell_that_is_measured_anew_leaves_what_was_simulated_of_the_others(session: Session, tmp_path: Path) -> None:
    """The page that holds the simulator against one config's cells once lost them all, since one was run again."""
    file, out = config(tmp_path, "250mbit", "1gbit"), tmp_path / "out"
    write_page = cells.page_writer("study", "page.md", lambda _: "a page")
    write_page(file, out, tmp_path, None)
    stored = kept.kept(tmp_path, "study", Study)
    assert stored is not None
    where, study = stored
    simulated = replace(study, points=[replace(point, simulated=point.cell) for point in study.points])
    kept.keep(tmp_path, "study", Study, simulated, where)

    shutil.rmtree(out / "cell1")
    session.point = cell(stock=policy(1.5), prophet=policy(0.9))
    write_page(file, out, tmp_path, None)
    stored = kept.kept(tmp_path, "study", Study)
    assert stored is not None
    first, second = stored[1].points
    assert first == simulated.points[0]
    assert second.cell.times_s == {"stock": 1.5, "prophet": 0.9}
    assert second.simulated is None
