"""Kept data of a measurement: written and read again, small, with its provenance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.records import read_results
from prophet_scheduler.lab.session import simulate_session
from support.configs import REPLAY, changed, loaded
from tools import kept
from tools.kept import Point, Provenance, Study

PROVENANCE = Provenance("2026-01-02", "abc1234", "a processor", 2)


@dataclass(frozen=True)
class Numbers:
    """Something to keep."""

    values: list[float]
    name: str | None = None


def test_what_is_kept_comes_back_with_its_provenance(tmp_path: Path) -> None:
    assert kept.kept(tmp_path, "numbers", Numbers) is None
    kept.keep(tmp_path, "numbers", Numbers, Numbers([1.0, 2.5e-07, 3.0]), PROVENANCE)
    assert kept.kept(tmp_path, "numbers", Numbers) == kept.KeptData(PROVENANCE, Numbers([1.0, 2.5e-07, 3.0]))
    assert "[1.0, 2.5e-07, 3.0]" in kept.data_file(tmp_path, "numbers").read_text(), "numbers are on one line"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["numbers.json"]


def test_a_study_has_its_workers_and_the_same_floats(tmp_path: Path) -> None:
    experiment = loaded(REPLAY, tmp_path)
    simulate_session(experiment, tmp_path / "out")
    results = read_results(tmp_path / "out" / "results.json")
    study = kept.study_of(experiment, results.cells)
    kept.keep(tmp_path, "study", Study, study, PROVENANCE)
    shown = kept.kept(tmp_path, "study", Study)
    assert shown is not None
    (point,) = shown.data.points
    before = results.cells[0].policies["prophet"]
    assert point.workers == 2 and point.real_and_simulated_s == {}
    times = point.cell.rests_s
    both = Point(point.cell, 2, point.cell).real_and_simulated_s
    assert both == {name: (seconds, seconds) for name, seconds in times.items()} != {}
    assert point.cell.policies["prophet"].iteration_s == before.iteration_s
    with pytest.raises(UserError, match="of another config"):
        kept.study_of(loaded(changed(REPLAY, "repeats", 1), tmp_path), [])


def test_a_note_has_its_links_as_on_a_page(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "peers.md").write_text("*A note of 2026-01-01.* ![times](../times.png)\n")
    assert kept.note(tmp_path, "peers") == "*A note of 2026-01-01.* ![times](times.png)\n"
    assert kept.note(tmp_path, "others") == ""


def test_missing_pieces_are_made_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "new" / "pieces.jsonl"

    def resumed(*keys: str) -> list[Numbers]:
        return kept.resumed(file, Numbers, keys, lambda number, key: Numbers([number], key), lambda each: each.name)

    first = [Numbers([0.0], "a"), Numbers([1.0], "b")]
    assert resumed("a", "b") == first
    assert resumed("b", "a", "a") == [*first, Numbers([2.0], "a")], "one of each was there"
    file.write_text("{}\n")
    with pytest.raises(UserError, match=r"pieces\.jsonl:1: cannot be read \(values: field required\); remove the line"):
        resumed()


def test_the_line_names_day_commit_and_machine() -> None:
    assert PROVENANCE.line() == "Measured on 2026-01-02 at commit abc1234 on a processor, 2 cores."
    here = kept.here()
    assert here.cores >= 1 and here.processor and here.commit


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kept.commit() == "unknown"
