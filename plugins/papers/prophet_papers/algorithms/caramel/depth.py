"""Number of chunks of a transfer, so that network and processor work in parallel (Caramel, section 4.4).

Rule of this file: the paper's adaptive depth. Sizes are bytes.
"""

from __future__ import annotations

import math

MAX_DEPTH = 8
"""The paper's maximum depth."""


def adaptive_depth(size_bytes: float, threshold_bytes: float) -> int:
    """Return the depth for a transfer: 1 for small transfers, up to MAX_DEPTH for large ones.

    The paper gives these limits and says that the depth depends on the size and the batching threshold. Here it is the
    maximum number of chunks that are not below the threshold: smaller chunks would lose what batching gains. With a
    threshold of 0 (no overhead), every transfer has the maximum depth.
    """
    if size_bytes >= MAX_DEPTH * threshold_bytes:
        return MAX_DEPTH
    return max(1, math.floor(size_bytes / threshold_bytes))
