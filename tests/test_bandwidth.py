"""The bandwidth monitor on synthetic transfers: rate, overhead, acknowledgement delay, changes and neighbours."""

from __future__ import annotations

import numpy as np
import pytest
from virtual import transfers

from prophet.bandwidth import BandwidthMonitor, NicSample, TransferFit, interface_towards, sample_nic

SIZES = [131072, 131072, 20000, 131072, 60000, 4000] * 20


def test_rate_overhead_and_delay_come_out_of_the_transfers() -> None:
    fit = TransferFit()
    fit.observe(transfers(SIZES, bandwidth=30e6, overhead_s=0.0005, ack_delay_s=0.001))
    network = fit.fit()
    assert network is not None
    assert network.bandwidth == pytest.approx(30e6, rel=0.02)
    assert network.overhead_s == pytest.approx(0.0005, rel=0.1)
    assert network.ack_delay_s == pytest.approx(0.001, rel=0.2)


def test_sizes_that_do_not_differ_give_a_rate_without_overhead() -> None:
    fit = TransferFit()
    fit.observe(transfers([131072] * 60, bandwidth=30e6, overhead_s=0.0))
    network = fit.fit()
    assert network is not None
    assert network.bandwidth == pytest.approx(30e6, rel=0.01)
    assert network.overhead_s == 0.0


def test_a_few_stalls_do_not_move_the_rate() -> None:
    stream = transfers(SIZES, bandwidth=30e6, overhead_s=0.0005)
    stalled = stream.copy()
    for at in (1.0 / 6, 0.25):
        stalled["time_s"][stream["time_s"] > at] += 0.3
    fit = TransferFit()
    fit.observe(stalled)
    network = fit.fit()
    assert network is not None
    assert network.bandwidth == pytest.approx(30e6, rel=0.05)


def test_too_few_transfers_say_nothing() -> None:
    fit = TransferFit()
    fit.observe(transfers([131072] * 10, bandwidth=30e6, overhead_s=0.0))
    assert fit.fit() is None


@pytest.mark.parametrize("after", [10e6, 90e6])
def test_a_changed_rate_is_followed(after: float) -> None:
    fit = TransferFit()
    fit.observe(transfers(SIZES * 3, bandwidth=30e6, overhead_s=0.0002))
    assert fit.fit() is not None
    fit.observe(transfers(SIZES, bandwidth=after, overhead_s=0.0002, began=8.0))
    network = fit.fit()
    assert network is not None
    assert network.bandwidth == pytest.approx(after, rel=0.1)


def monitor_with_fit() -> tuple[BandwidthMonitor, int]:
    monitor = BandwidthMonitor()
    stream = transfers(SIZES, bandwidth=30e6, overhead_s=0.0005)
    monitor.observe_nic(NicSample(0.0, 0, 0))
    monitor.observe(stream)
    return monitor, sum(SIZES)


def test_the_jobs_own_bytes_are_not_other_traffic() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, int(own * 1.04), 0))
    assert monitor.other_traffic == 0.0


def test_other_traffic_is_recognised_subtracted_and_given_back() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, own, 0))
    sent = own
    for second in range(2, 8):
        sent += 10_000_000
        monitor.observe_nic(NicSample(float(second), sent, 0))
    assert monitor.other_traffic == pytest.approx(10e6, rel=0.05)
    network = monitor.network
    assert network is not None
    assert network.bandwidth == pytest.approx(20e6, rel=0.1)
    for second in range(8, 16):
        monitor.observe_nic(NicSample(float(second), sent, 0))
    network = monitor.network
    assert network is not None
    assert network.bandwidth == pytest.approx(30e6, rel=0.05)


def test_the_edges_read_this_machine() -> None:
    interface = interface_towards("127.0.0.1")
    assert interface is not None
    sample = sample_nic(interface, 1.0)
    assert sample is not None
    assert sample.time_s == 1.0
    assert sample_nic("no-such-interface", 1.0) is None
    assert interface_towards("not an address") is None


def test_nothing_is_learned_from_nothing() -> None:
    monitor = BandwidthMonitor()
    monitor.observe(np.zeros(0, transfers([1], 1.0, 0.0).dtype))
    assert monitor.network is None
