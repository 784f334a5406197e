"""The history of benchmarks: a line each time, and the change to the last of the same machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import bench
from tools.kept import Provenance, read_pieces

MINE = Provenance("2026-01-02", "abc1234", "a processor", 2)
OTHER = Provenance("2026-01-03", "abc1235", "another", 64)


def run(results: Path, where: Provenance, ops: float, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(bench, "here", lambda: where)
    monkeypatch.setattr(bench, "measure", lambda: {"queue_ops_per_s": ops, "get_p99_us": 0.3})
    return bench.main([str(results / "build" / "bench.json"), "--results", str(results)])


def test_an_entry_is_added_and_compared_with_the_last_of_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, MINE, 1000, monkeypatch) == 0
    assert "no earlier figures of this machine (a processor, 2 cores)" in capsys.readouterr().out
    assert run(tmp_path, OTHER, 9000, monkeypatch) == 0
    capsys.readouterr()
    assert run(tmp_path, MINE, 900, monkeypatch) == 0
    printed = capsys.readouterr().out
    assert (
        "-10.0%" in printed and "+0.0%" in printed and "changes are to those on 2026-01-02 at commit abc1234" in printed
    )
    entries = read_pieces(bench.history_file(tmp_path), bench.Entry)
    assert [entry.figures["queue_ops_per_s"] for entry in entries] == [1000, 9000, 900]
    assert bench.last(entries) == entries[2] and bench.last(entries, OTHER.machine) == entries[1]
    assert bench.last([]) is None
    assert json.loads((tmp_path / "build" / "bench.json").read_text()) == {"queue_ops_per_s": 900, "get_p99_us": 0.3}


def test_a_line_that_is_no_entry_is_named_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "bench.jsonl").write_text('{"figures": {}, "load": 0}\n')
    assert run(tmp_path, MINE, 1, monkeypatch) == 2
    assert "bench.jsonl:1: cannot be read (measured: field required); remove the line" in capsys.readouterr().err
    assert not (tmp_path / "build").exists()


def test_the_figures_are_measured() -> None:
    figures = bench.measure()
    assert len(figures) == 4 and min(figures.values()) > 0
