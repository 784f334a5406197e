"""The rate left on a link of MLfabric's network at a moment, for tests."""

from __future__ import annotations

from bisect import bisect_right

from prophet_mlfabric.network import Link


def rate_at(link: Link, time_s: float) -> float:
    """Return the rate in bytes per second."""
    return link.rates[bisect_right(link.times, time_s) - 1]
