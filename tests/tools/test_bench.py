"""Benchmarks: their figures, and the change to the last."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import bench, kept, measure
from tools.kept import Provenance


def test_figures_are_compared_with_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept, "here", lambda: Provenance("2026-01-02", "abc1234", "a processor", 2))
    for operations in (1000, 900):
        capsys.readouterr()
        monkeypatch.setattr(bench, "measured", lambda: {"queue_ops_per_s": operations, "get_p99_us": 0.3})  # noqa: B023
        assert measure.main(["bench", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "-10.0%" in printed and "+0.0%" in printed
    assert "changes are from those on 2026-01-02 at commit abc1234 on a processor, 2 cores" in printed


def test_the_figures_are_measured() -> None:
    figures = bench.measured()
    assert len(figures) == 4 and min(figures.values()) > 0
