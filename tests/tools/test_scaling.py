"""The simulator's cost, of one small size that is measured here."""

from __future__ import annotations

from tools import scaling


def test_a_size_is_measured() -> None:
    row = scaling.cost_of(2, 20)
    assert (row["workers"], row["gradients"]) == (2, 20)
    assert row["events"] > 100 and row["wall_s"] > 0 and row["peak_bytes"] > 1e6
