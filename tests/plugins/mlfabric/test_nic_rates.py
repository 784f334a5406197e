"""Rates from counters. Samples are 100 ms apart, and carry headers."""

from __future__ import annotations

import pytest

from prophet_mlfabric.nic_rates import NicEstimate
from prophet_scheduler.learn.bandwidth import FRAMING, NicSample


def observe(estimate: NicEstimate, rates: list[float], start_s: float, sent: float = 0.0) -> tuple[float, float]:
    """Samples of a NIC that sends so many bytes per second in each 100 ms, busy with an update all the time."""
    estimate.observe(NicSample(start_s, int(sent), 0), sending=False)
    for rate in rates:
        start_s, sent = start_s + 0.1, sent + rate * FRAMING * 0.1
        estimate.observe(NicSample(start_s, int(sent), 0), sending=True)
    return start_s, sent


def test_what_is_sent_while_an_update_travels_is_what_is_available() -> None:
    estimate = NicEstimate()
    assert estimate.up is None and estimate.news() is None
    observe(estimate, [100e6, 120e6, 90e6], 0.0)
    assert estimate.up == pytest.approx(120e6, rel=1e-3)  # the sender paused in the others


def test_what_is_sent_beside_updates_says_nothing() -> None:
    estimate = NicEstimate()
    observe(estimate, [100e6], 0.0)
    estimate.observe(NicSample(5.0, int(4e9), 0), sending=False)
    estimate.observe(NicSample(5.1, int(4e9) + 1000, 0), sending=True)  # too little to say
    assert estimate.up == pytest.approx(100e6, rel=1e-3)


def test_a_rate_that_fell_is_believed_after_some_time_of_sending() -> None:
    estimate = NicEstimate()
    time_s, sent = observe(estimate, [100e6] * 5, 0.0)
    time_s, sent = observe(estimate, [50e6] * 2, time_s, sent)
    assert estimate.up == pytest.approx(100e6, rel=1e-3)
    observe(estimate, [50e6] * 3, time_s, sent)
    assert estimate.up == pytest.approx(50e6, rel=1e-3)


def test_a_rate_is_news_once_and_again_when_it_changes() -> None:
    estimate = NicEstimate()
    time_s, sent = observe(estimate, [100e6], 0.0)
    assert estimate.news() == pytest.approx(100e6, rel=1e-3)
    time_s, sent = observe(estimate, [103e6], time_s, sent)
    assert estimate.news() is None
    observe(estimate, [200e6], time_s, sent)
    assert estimate.news() == pytest.approx(200e6, rel=1e-3)
