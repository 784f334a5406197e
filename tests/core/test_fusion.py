"""Which small gradients travel together."""

from __future__ import annotations

from prophet.core.fusion import FUSE_BELOW_BYTES, FUSE_SPAN_BYTES, FUSE_TOTAL_BYTES, fuse


def test_fusion_keeps_forward_order_and_its_limits() -> None:
    small, large = 1000, FUSE_BELOW_BYTES
    assert fuse([small, small, large, small], ["f"] * 4) == [[0, 1, 3], [2]]
    assert fuse([small, small, small], ["f", "g", "f"]) == [[0, 2], [1]]
    assert fuse([small, small], [None, None]) == [[0], [1]]
    assert fuse([small, FUSE_SPAN_BYTES + 1, small], ["f"] * 3) == [[0], [1], [2]]
    size = FUSE_BELOW_BYTES - 1
    fit = FUSE_TOTAL_BYTES // size
    assert fuse([size] * (fit + 1), ["f"] * (fit + 1)) == [list(range(fit)), [fit]]
