"""The simulator's cost, of one small size that is measured here."""

from __future__ import annotations

from pathlib import Path

from tools import scaling


def test_a_size_is_measured_and_drawn(tmp_path: Path) -> None:
    row = scaling.cost_of(2, 20)
    assert (row["workers"], row["gradients"]) == (2, 20)
    assert row["events"] > 100 and row["wall_s"] > 0 and row["peak_bytes"] > 1e6
    scaling.draw([row, row], tmp_path / scaling.FIGURE)
    assert (tmp_path / scaling.FIGURE).read_bytes().startswith(b"\x89PNG")
