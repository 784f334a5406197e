"""What is left of a link of MLfabric's network at a moment, for tests."""

from __future__ import annotations

from bisect import bisect_right

from prophet_scheduler.mlfabric.network import Link


def rate_at(link: Link, time_s: float) -> float:
    """Bytes per second."""
    return link.rates[bisect_right(link.times, time_s) - 1]
