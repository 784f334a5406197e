"""Benchmarks: their figures, and the change to the last of the same machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tools import bench, kept, measure
from tools.kept import Provenance

MINE = Provenance("2026-01-02", "abc1234", "a processor", 2)
OTHER = Provenance("2026-01-03", "abc1235", "another", 64)


def run(
    results: Path, where: Provenance, ops: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Measure. Return what was printed."""
    monkeypatch.setattr(kept, "here", lambda: where)
    monkeypatch.setattr(bench, "measured", lambda: {"queue_ops_per_s": ops, "get_p99_us": 0.3})
    assert measure.main(["bench", "--results", str(results)]) == 0
    return capsys.readouterr().out


def test_figures_are_compared_with_the_last_if_this_machine_made_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(tmp_path, MINE, 1000, monkeypatch, capsys)
    assert "no earlier figures of this machine (a processor, 2 cores)" in first
    printed = run(tmp_path, MINE, 900, monkeypatch, capsys)
    assert "-10.0%" in printed and "+0.0%" in printed
    assert "changes are from those on 2026-01-02 at commit abc1234" in printed
    assert "no earlier figures" in run(tmp_path, OTHER, 9000, monkeypatch, capsys)
    stored = kept.kept(tmp_path, "bench", dict[str, Any])
    assert stored is not None
    assert stored.data["figures"] == {"queue_ops_per_s": 9000, "get_p99_us": 0.3} and stored.measured == OTHER


def test_the_figures_are_measured() -> None:
    figures = bench.measured()
    assert len(figures) == 4 and min(figures.values()) > 0
