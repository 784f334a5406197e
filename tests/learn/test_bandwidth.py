"""The bandwidth monitor on synthetic transfers: rate, overhead, acknowledgement delay, changes and neighbours."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.core.events import EventKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.learn import bandwidth
from prophet_scheduler.learn.bandwidth import BandwidthMonitor, NicSample, TransferFit
from prophet_scheduler.learn.nic import interface_towards, sample_nic
from prophet_scheduler.learn.wire import PushCosts
from support.virtual import transfers

SIZES = [131072, 131072, 20000, 131072, 60000, 4000] * 40


def fitted(*streams: NDArray[Any]) -> Network:
    fit = TransferFit()
    for stream in streams:
        fit.observe(stream)
        fit.fit()
    network = fit.fit()
    assert network is not None
    return network


def test_rate_overhead_and_delay_come_out_of_the_transfers() -> None:
    network = fitted(transfers(SIZES, bandwidth=30e6, overhead_s=0.0005, ack_delay_s=0.001))
    assert network.bandwidth == pytest.approx(30e6, rel=0.001)
    assert network.overhead_s == pytest.approx(0.0005, rel=0.01)
    assert network.ack_delay_s == pytest.approx(0.001, rel=0.01)


def test_acknowledgements_that_come_in_bunches_do_not_mislead_it() -> None:
    stream = transfers(SIZES * 4, bandwidth=30e6, overhead_s=0.0, ack_delay_s=0.002, in_flight=6, ack_jitter_s=0.002)
    finishes = stream["time_s"][stream["kind"] == EventKind.FINISH]
    assert np.mean(np.diff(finishes) < 1e-6) > 0.1, "this stream has bunches"
    network = fitted(stream)
    assert network.bandwidth == pytest.approx(30e6, rel=0.1)
    assert network.transfer_s(131072) == pytest.approx(131072 / 30e6, rel=0.05)


def test_sizes_that_do_not_differ_give_a_rate_without_overhead() -> None:
    network = fitted(transfers([131072] * 60, bandwidth=30e6, overhead_s=0.0))
    assert network.bandwidth == pytest.approx(30e6, rel=0.01)
    assert network.overhead_s == pytest.approx(0.0, abs=1e-6)


def test_what_a_transfer_takes_is_right_where_sizes_cannot_tell_overhead_from_rate() -> None:
    network = fitted(transfers([131072] * 60, bandwidth=30e6, overhead_s=0.001))
    assert network.transfer_s(131072) == pytest.approx(0.001 + 131072 / 30e6, rel=0.01)


def test_a_few_stalls_do_not_move_the_rate() -> None:
    stream = transfers(SIZES * 2, bandwidth=30e6, overhead_s=0.0005)
    stalled = stream.copy()
    for at in (1.0 / 6, 0.25):
        stalled["time_s"][stream["time_s"] > at] += 0.3
    assert fitted(stalled).bandwidth == pytest.approx(30e6, rel=0.02)


def test_too_few_transfers_say_nothing() -> None:
    fit = TransferFit()
    fit.observe(transfers([131072] * 10, bandwidth=30e6, overhead_s=0.0))
    assert fit.fit() is None


def test_where_few_transfers_fit_into_the_window_the_newest_count_all_the_same() -> None:
    """Or on a link on which a block takes seconds the network would never be known."""
    stream = transfers([131072] * 60, bandwidth=125e3, overhead_s=0.0)
    finishes = stream["time_s"][stream["kind"] == EventKind.FINISH]
    assert np.count_nonzero(finishes > finishes[-1] - bandwidth.WINDOW_S) < bandwidth.LEAST_TRANSFERS
    network = fitted(stream)
    assert network.bandwidth == pytest.approx(125e3, rel=0.01)
    assert network.ack_delay_s < 0.1, "four are in flight at once, and wait for one another"
    later = transfers([131072] * 30, bandwidth=250e3, overhead_s=0.0, began=finishes[-1] + 60.0)
    assert fitted(stream, later).bandwidth == pytest.approx(250e3, rel=0.01), "and those before them do not"


def test_events_may_be_cut_anywhere() -> None:
    stream = transfers(SIZES, bandwidth=30e6, overhead_s=0.0005, ack_delay_s=0.001)
    pieces, whole = TransferFit(), TransferFit()
    whole.observe(stream)
    for at in range(0, len(stream), 7):
        pieces.observe(stream[at : at + 7])
    assert pieces.fit() == whole.fit() is not None


@pytest.mark.parametrize("after", [10e6, 20e6, 90e6])
def test_a_changed_rate_is_followed(after: float) -> None:
    before = transfers(SIZES * 4, bandwidth=30e6, overhead_s=0.0002)
    network = fitted(before, transfers(SIZES * 8, bandwidth=after, overhead_s=0.0002, began=before["time_s"][-1] + 1.0))
    assert network.bandwidth == pytest.approx(after, rel=0.05)


def known(monitor: BandwidthMonitor) -> Network:
    network = monitor.network
    assert network is not None
    return network


def monitor_with_fit() -> tuple[BandwidthMonitor, int]:
    monitor = BandwidthMonitor()
    stream = transfers(SIZES, bandwidth=30e6, overhead_s=0.0005)
    monitor.observe_nic(NicSample(0.0, 0, 0))
    monitor.observe(stream)
    return monitor, sum(SIZES)


def test_the_jobs_own_bytes_are_not_other_traffic() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, int(own * 1.04), 0))
    assert known(monitor).bandwidth == pytest.approx(30e6, rel=0.01)


def test_other_traffic_is_recognised_subtracted_and_given_back() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, own, 0))
    sent = own
    for second in range(2, 8):
        sent += 10_000_000
        monitor.observe_nic(NicSample(float(second), sent, 0))
    assert known(monitor).bandwidth == pytest.approx(20e6, rel=0.05)
    for second in range(8, 16):
        monitor.observe_nic(NicSample(float(second), sent, 0))
    assert known(monitor).bandwidth == pytest.approx(30e6, rel=0.02)


def test_other_traffic_is_seen_in_either_direction() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, own, 10_000_000))
    assert known(monitor).bandwidth == pytest.approx(20e6, rel=0.01)


def test_neighbours_that_fill_the_link_while_we_are_silent_leave_us_half() -> None:
    monitor, own = monitor_with_fit()
    for second in range(1, 8):
        monitor.observe_nic(NicSample(float(second), own + second * 31_000_000, 0))
    assert known(monitor).bandwidth == pytest.approx(15e6, rel=0.02)


def test_what_new_transfers_show_has_the_traffic_subtracted_already() -> None:
    monitor = BandwidthMonitor()
    sent = own = 0
    for second in range(5):
        stream = transfers(SIZES, bandwidth=20e6, overhead_s=0.0, began=2.0 * second)
        own += sum(SIZES)
        sent += sum(SIZES) + 20_000_000
        monitor.observe(stream)
        monitor.observe_nic(NicSample(2.0 * second, sent, 0))
    monitor.observe(transfers(SIZES, bandwidth=20e6, overhead_s=0.0, began=10.0))
    assert known(monitor).bandwidth == pytest.approx(20e6, rel=0.02)
    for second in range(10, 18):
        monitor.observe_nic(NicSample(float(second), sent, 0))
    assert known(monitor).bandwidth == pytest.approx(30e6, rel=0.05), "and is given back once it ends"


def test_first_pushes_of_new_keys_are_not_other_traffic() -> None:
    """They are no events. What others send is believed to go on meanwhile, and seen again after it."""
    monitor, sent = monitor_with_fit()
    for second in range(1, 20):
        if second == 8:
            monitor.disregard(math.inf)  # another cut
        if second == 11:
            monitor.disregard(10.5)  # whose first rounds are over
        sent += 10_000_000 + 20_000_000 * (8 <= second <= 11)
        monitor.observe_nic(NicSample(float(second), sent, 0))
        network = known(monitor)
        if second >= 7:
            assert network.bandwidth == pytest.approx(20e6, rel=0.02)


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


def test_a_start_whose_finish_was_lost_is_not_matched_with_a_later_one() -> None:
    """The same partitions come each second. From the middle of one second to that of the next all events are lost."""
    pieces = []
    for second in range(40):
        whole = transfers(SIZES[:24], bandwidth=30e6, overhead_s=0.0005, ack_delay_s=0.001, began=float(second))
        pieces.append(whole[:24].copy() if second % 2 == 0 else whole[24:].copy())
        pieces[-1]["gap"][0] = 48 * (second % 2)
    network = fitted(*pieces)
    assert network.bandwidth == pytest.approx(30e6, rel=0.01)
    assert network.overhead_s == pytest.approx(0.0005, rel=0.05)


def test_what_a_gap_hides_of_the_jobs_own_bytes_is_not_other_traffic() -> None:
    monitor, own = monitor_with_fit()
    monitor.observe_nic(NicSample(1.0, own, 0))
    after_gap = transfers(SIZES[:10], bandwidth=30e6, overhead_s=0.0005, began=8.0)
    after_gap["gap"][0] = 10_000
    sent = own + 100_000_000 + sum(SIZES[:10])  # nobody else sent any of it
    monitor.observe(after_gap)
    for second in (9.0, 10.0):
        monitor.observe_nic(NicSample(second, sent, 0))
        assert known(monitor).bandwidth == pytest.approx(30e6, rel=0.01)
    monitor.observe_nic(NicSample(11.0, sent + 20_000_000, 0))
    assert known(monitor).bandwidth == pytest.approx(20e6, rel=0.05), "and others are seen again"


def test_an_overhead_that_was_measured_is_remembered_when_all_sizes_are_alike() -> None:
    fit = TransferFit(window_s=1.0)
    fit.observe(transfers(SIZES, bandwidth=30e6, overhead_s=0.0005))
    assert fit.fit() is not None
    fit.observe(transfers([131072] * 400, bandwidth=60e6, overhead_s=0.0005, began=100.0))
    network = fit.fit()
    assert network is not None
    assert network.overhead_s == pytest.approx(0.0005, rel=0.05)
    assert network.bandwidth == pytest.approx(60e6, rel=0.02)


def test_what_is_expected_of_the_overhead_gives_way_to_what_is_measured() -> None:
    monitor = BandwidthMonitor()
    monitor.expect(Network(1e9, overhead_s=0.003))
    monitor.observe(transfers(SIZES, bandwidth=30e6, overhead_s=0.0005))
    assert known(monitor).overhead_s == pytest.approx(0.0005, rel=0.05)


def count_fits(monkeypatch: pytest.MonkeyPatch) -> list[Network]:
    """Return the fits from here on, as they are."""
    fits: list[Network] = []
    fit = TransferFit.fit

    def counting(self: TransferFit) -> Network | None:
        network = fit(self)
        if network is not None:
            fits.append(network)
        return network

    monkeypatch.setattr(TransferFit, "fit", counting)
    return fits


def seconds_of(monitor: BandwidthMonitor, began_s: int, ends_s: int, bandwidth: float) -> None:
    """A job that sends all the time, and is asked for its network ten times a second."""
    for tenth in range(began_s * 10, ends_s * 10):
        sizes = [131072] * int(bandwidth / 131072 / 10)
        monitor.observe(transfers(sizes, bandwidth=bandwidth, overhead_s=0.0, began=tenth / 10))
        assert monitor.network is not None


def test_a_fit_holds_for_a_while_and_longer_where_the_last_ones_were_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    fits = count_fits(monkeypatch)
    monitor = BandwidthMonitor()
    seconds_of(monitor, 0, 6, 30e6)
    assert len(fits) == 3
    seconds_of(monitor, 6, 36, 30e6)
    assert len(fits) == 6


@pytest.mark.parametrize("factor", [1 / 3, 2])
def test_a_fit_that_would_hold_for_long_does_not_where_pushes_are_slower_or_faster(
    monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    monitor = BandwidthMonitor()
    seconds_of(monitor, 0, 6, 30e6)  # Without a change the next would be at 15 s.
    fits = count_fits(monkeypatch)
    seconds_of(monitor, 6, 11, 30e6 * factor)
    assert fits
    assert monitor.network is not None
    assert monitor.network.bandwidth == pytest.approx(30e6 * factor, rel=0.05)


def test_fits_that_differ_do_not_hold_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = itertools.count()
    monkeypatch.setattr(TransferFit, "fit", lambda self: Network(1e9 if next(seen) % 2 else 1.2e9))
    monitor = BandwidthMonitor()
    seconds_of(monitor, 0, 20, 30e6)
    assert next(seen) == 8


def test_a_delay_that_one_fit_does_not_see_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([0.008, 0.0, 0.0078, 0.0, 0.0])
    monkeypatch.setattr(TransferFit, "fit", lambda self: Network(1e9, 0.0, next(seen)))
    monitor, delays = BandwidthMonitor(), []
    for number in range(5):
        monitor.observe(transfers([1000] * 4, bandwidth=30e6, overhead_s=0.0, began=3.0 * number))
        assert monitor.network is not None
        delays.append(monitor.network.ack_delay_s)
    assert delays == [0.008, 0.008, 0.0078, 0.0, 0.0]


def test_two_rates_that_take_turns_are_no_change_and_no_error() -> None:
    """Half of the newest pushes at half of the rate before, half at a quarter: none is near the median of these."""
    pace = np.repeat([1.0] * 12 + [2.0, 4.0] * 4, bandwidth.STRETCH)
    pushes = np.zeros(len(pace), bandwidth._TRANSFER)
    pushes["bytes"] = 1e6
    pushes["finish_s"] = np.cumsum(0.004 * pace)
    pushes["start_s"] = pushes["finish_s"] - 0.1
    assert bandwidth._change(pushes, PushCosts(0.0, 4e-9, 0.0)) == 0
