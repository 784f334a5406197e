"""Rates from counters. Samples are 100 ms apart, and carry headers."""

from __future__ import annotations

from typing import Any

import pytest

from prophet_mlfabric.nic_rates import NicWatch
from prophet_scheduler.learn.bandwidth import FRAMING, NicSample


def observe(watch: NicWatch, rates: list[float], start_s: float, sent: float = 0.0) -> tuple[float, float]:
    """Samples of a NIC that sends so many bytes per second in each 100 ms, busy with an update all the time."""
    watch.observe(NicSample(start_s, int(sent), 0), sending=False)
    for rate in rates:
        start_s, sent = start_s + 0.1, sent + rate * FRAMING * 0.1
        watch.observe(NicSample(start_s, int(sent), 0), sending=True)
    return start_s, sent


def about(rate: float) -> Any:
    return pytest.approx(rate, rel=1e-3)


def test_what_is_sent_while_an_update_travels_is_what_is_available() -> None:
    watch = NicWatch(None)
    assert watch.news() is None
    time_s, sent = observe(watch, [100e6, 120e6, 90e6], 0.0)
    assert watch.news() == about(120e6)  # the sender paused in the others
    # It is news once, and again when it changes; beside updates and with little to send it says nothing.
    observe(watch, [123e6], time_s, sent)
    watch.observe(NicSample(5.0, int(4e9), 0), sending=False)
    watch.observe(NicSample(5.1, int(4e9) + 1000, 0), sending=True)
    assert watch.news() is None
    observe(watch, [200e6], 6.0, 5e9)
    assert watch.news() == about(200e6)


def test_a_rate_that_fell_is_believed_after_some_time_of_sending() -> None:
    watch = NicWatch(None)
    time_s, sent = observe(watch, [100e6] * 5, 0.0)
    assert watch.news() == about(100e6)
    time_s, sent = observe(watch, [50e6] * 2, time_s, sent)
    assert watch.news() is None
    observe(watch, [50e6] * 3, time_s, sent)
    assert watch.news() == about(50e6)
