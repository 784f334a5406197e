"""Number of chunks of a transfer, so that network and processor work in parallel (Caramel, section 4.4).

Rule of this file: the paper's adaptive depth, and the pipeline model behind it. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network

MAX_DEPTH = 8
"""The paper's maximum depth."""


def adaptive_depth(size_bytes: float, threshold_bytes: float, max_depth: int = MAX_DEPTH) -> int:
    """Return the depth for a transfer: 1 for small transfers, up to `max_depth` for large ones.

    The paper gives these limits and says that the depth depends on the size and the batching threshold. Here it is the
    maximum number of chunks that are not below the threshold: smaller chunks would lose what batching gains. With a
    threshold of 0 (no overhead), every transfer has the maximum depth. Raises UserError for a depth below 1.
    """
    _check(max_depth)
    if size_bytes >= max_depth * threshold_bytes:
        return max_depth
    return max(1, math.floor(size_bytes / threshold_bytes))


def pipelined_s(size_bytes: float, depth: int, stages: Sequence[Network]) -> float:
    """Return the seconds that `depth` equal chunks take through `stages`, each of which works on one chunk at a time.

    The first chunk passes all stages; the others then follow at the pace of the slowest stage:

        T = sum of t(k) + (depth - 1) max t(k),  t(k) = overhead of stage k + size / (depth x its rate)

    Stages are steps without shared resources: to the wire, over the wire, the sum. A single stage is the plain cost
    line, with `depth` times the overhead. Raises UserError for a depth below 1, or without stages.
    """
    _check(depth)
    if not stages:
        raise UserError("stages is empty; a chunk goes through one stage or more")
    times = [stage.transfer_s(size_bytes / depth) for stage in stages]
    return sum(times) + (depth - 1) * max(times)


def best_depth(size_bytes: float, stages: Sequence[Network]) -> int:
    """Return the smallest depth up to MAX_DEPTH with the lowest `pipelined_s`: the best that adapting could do."""
    return min(range(1, MAX_DEPTH + 1), key=lambda depth: pipelined_s(size_bytes, depth, stages))


def _check(depth: int) -> None:
    if depth < 1:
        raise UserError(f"depth is {depth}; it must be 1 or more")
