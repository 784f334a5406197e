"""The end of a merging of gradients, for tests."""

from __future__ import annotations

from collections.abc import Sequence

from prophet_scheduler.core.network import Network


def end_s(
    groups: Sequence[Sequence[int]], generation_s: Sequence[float], sizes: Sequence[int], network: Network
) -> float:
    """Return when the last of `groups` is off the wire, in seconds after backward began; merging minimizes this."""
    now = 0.0
    for members in groups:
        ready_s = max(generation_s[member] for member in members)
        now = max(now, ready_s) + network.transfer_s(sum(sizes[member] for member in members))
    return now
