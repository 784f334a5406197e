"""Into how many chunks a transfer is cut, so that the network and the processor work at once (Caramel, section 4.4).

Rule of this file: the paper's adaptive depth, and the pipeline that explains it. Sizes are bytes, times seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network

MAX_DEPTH = 8
"""The paper's greatest depth."""


def adaptive_depth(size_bytes: float, threshold_bytes: float, max_depth: int = MAX_DEPTH) -> int:
    """The depth for a transfer: 1 for small ones, up to `max_depth` for large ones.

    The paper gives the two ends and says that the depth follows from the size and the threshold of batching. Here
    it is the most chunks of which none is smaller than that threshold: cutting below it costs what batching gains.
    A threshold of 0 (no overhead) makes every transfer as deep as allowed. Raises UserError for a depth below 1.
    """
    _check(max_depth)
    if size_bytes >= max_depth * threshold_bytes:
        return max_depth
    return max(1, math.floor(size_bytes / threshold_bytes))


def pipelined_s(size_bytes: float, depth: int, stages: Sequence[Network]) -> float:
    """Return the seconds that `depth` equal chunks take through `stages`, each of which works on one chunk at a time.

    The first chunk passes all the stages, and then one chunk leaves the slowest of them after another:

        T = sum of t(k) + (depth - 1) max t(k),  t(k) = overhead of stage k + size / (depth x its rate)

    Stages are what a chunk goes through one after another without sharing anything: to the wire, over it, the sum. One
    stage is the plain line, with the overhead `depth` times. Raises UserError for a depth below 1 and for no stages.
    """
    _check(depth)
    if not stages:
        raise UserError("stages is empty; a chunk goes through one stage or more")
    times = [stage.transfer_s(size_bytes / depth) for stage in stages]
    return sum(times) + (depth - 1) * max(times)


def best_depth(size_bytes: float, stages: Sequence[Network]) -> int:
    """The depth up to MAX_DEPTH with the least `pipelined_s`, the smallest of equals: what adapting could reach."""
    return min(range(1, MAX_DEPTH + 1), key=lambda depth: pipelined_s(size_bytes, depth, stages))


def _check(depth: int) -> None:
    if depth < 1:
        raise UserError(f"depth is {depth}; it must be 1 or more")
