"""Caramel's depth, and a pipeline of its chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from prophet_papers.algorithms.caramel.batching import threshold_bytes
from prophet_papers.algorithms.caramel.depth import MAX_DEPTH, adaptive_depth
from prophet_scheduler.core.network import Network


@pytest.mark.parametrize(
    ("size", "threshold", "depth"),
    [(1, 100.0, 1), (199, 100.0, 1), (200, 100.0, 2), (799, 100.0, 7), (800, 100.0, 8), (10**9, 100.0, 8), (1, 0.0, 8)],
)
def test_the_adaptive_depth_by_hand(size: int, threshold: float, depth: int) -> None:
    assert adaptive_depth(size, threshold) == depth


def pipelined_s(size_bytes: float, depth: int, stages: Sequence[Network]) -> float:
    """Return the seconds that `depth` equal chunks take through stages, each of which works on one at a time."""
    free = [0.0] * len(stages)
    for _ in range(depth):
        now = 0.0
        for index, stage in enumerate(stages):
            now = free[index] = max(now, free[index]) + stage.transfer_s(size_bytes / depth)
    return free[-1]


def test_a_pipeline_by_hand() -> None:
    # Two chunks: 1 + 4/2 = 3 s and 4/4 = 1 s each. 3 + 1, and the second chunk 3 s later.
    stages = (Network(2.0, 1.0), Network(4.0))
    assert pipelined_s(8, 2, stages) == 7.0
    assert pipelined_s(8, 1, stages) == 7.0


def test_adapting_is_never_far_from_the_best_depth_and_a_fixed_one_is() -> None:
    # To the wire, over it, and the sum, each as slow as the others; from 1 KB to 256 MB.
    stages = (Network(1e9, 1e-4),) * 3
    sizes = [1000 * 2**k for k in range(19)]
    threshold = threshold_bytes(stages[0])
    best_s = {size: min(pipelined_s(size, depth, stages) for depth in range(1, MAX_DEPTH + 1)) for size in sizes}

    def worst(depth_of: Callable[[int], int]) -> float:
        return max(pipelined_s(size, depth_of(size), stages) / best_s[size] for size in sizes)

    assert worst(lambda size: adaptive_depth(size, threshold)) < 1.2
    assert worst(lambda size: 1) > 2.3
    assert worst(lambda size: 8) > 3.2
