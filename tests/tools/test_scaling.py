"""The page of the simulator's cost, from one small size that is measured here."""

from __future__ import annotations

from pathlib import Path

from tools import kept, scaling
from tools.provenance import Provenance


def test_a_size_is_measured_drawn_and_on_the_page(tmp_path: Path) -> None:
    row = scaling.measure(2, 20)
    assert (row.workers, row.gradients) == (2, 20) and row.events > 100 and row.wall_s > 0 and row.peak_bytes > 1e6
    scaling.draw([row, row], tmp_path / scaling.FIGURE)
    assert (tmp_path / scaling.FIGURE).read_bytes().startswith(b"\x89PNG")
    provenance = Provenance("2026-01-02", "abc1234", "a processor", 2)
    kept.keep(tmp_path, scaling.NAME, list[scaling.SizeCost], [row], provenance)
    text = scaling.page(tmp_path)
    assert provenance.line() in text and f"| 2 | 20 | {row.wall_s:.2f} | {row.events:,} |" in text
