"""Caramel's depth of a pipeline."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_papers.algorithms.caramel.batching import threshold_bytes
from prophet_papers.algorithms.caramel.depth import adaptive_depth, best_depth, pipelined_s
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network

UNIT = Network(1.0)
"""One byte a second without overhead: bytes are seconds."""


@pytest.mark.parametrize(
    ("size", "threshold", "depth"),
    [(1, 100.0, 1), (199, 100.0, 1), (200, 100.0, 2), (799, 100.0, 7), (800, 100.0, 8), (10**9, 100.0, 8), (1, 0.0, 8)],
)
def test_the_adaptive_depth_by_hand(size: int, threshold: float, depth: int) -> None:
    assert adaptive_depth(size, threshold) == depth


def test_a_pipeline_by_hand() -> None:
    # Two chunks: 1 + 4/2 = 3 s and 4/4 = 1 s each. 3 + 1, and the second chunk 3 s later.
    stages = (Network(2.0, 1.0), Network(4.0))
    assert pipelined_s(8, 2, stages) == 7.0
    assert pipelined_s(8, 1, stages) == 7.0
    assert best_depth(8, stages) == 1, "the smaller of equals"
    assert best_depth(80, stages) == 4, "depth d takes d + 40 + 20/d: 49 at 4 and at 5"


@given(st.integers(1, 10**9), st.integers(1, 12), st.lists(st.tuples(st.floats(0, 1), st.floats(1, 1e9)), min_size=1))
def test_a_pipeline_is_what_a_simulation_of_its_chunks_takes(
    size: int, depth: int, rows: list[tuple[float, float]]
) -> None:
    stages = [Network(rate, overhead_s) for overhead_s, rate in rows]
    free = [0.0] * len(stages)
    for _ in range(depth):
        now = 0.0
        for index, stage in enumerate(stages):
            now = free[index] = max(now, free[index]) + stage.transfer_s(size / depth)
    assert pipelined_s(size, depth, stages) == pytest.approx(free[-1])


def test_adapting_is_never_far_from_the_best_depth_and_a_fixed_one_is() -> None:
    # To the wire, over it, and the sum, each as slow as the others; from 1 KB to 256 MB.
    stages = (Network(1e9, 1e-4),) * 3
    sizes = [1000 * 2**k for k in range(19)]
    threshold = threshold_bytes(stages[0])

    def worst(depth_of: Callable[[int], int]) -> float:
        return max(
            pipelined_s(size, depth_of(size), stages) / pipelined_s(size, best_depth(size, stages), stages)
            for size in sizes
        )

    assert worst(lambda size: adaptive_depth(size, threshold)) < 1.2
    assert worst(lambda size: 1) > 2.3
    assert worst(lambda size: 8) > 3.2


def test_no_depth() -> None:
    for call in (lambda: adaptive_depth(1, 1.0, 0), lambda: pipelined_s(1, 0, [UNIT])):
        with pytest.raises(UserError, match="depth is 0; it must be 1 or more"):
            call()
    with pytest.raises(UserError, match="stages is empty"):
        pipelined_s(1, 1, [])
