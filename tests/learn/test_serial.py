"""The cost of an operation, found again from the events of operations that take turns."""

from __future__ import annotations

import heapq
import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind
from prophet_scheduler.core.network import Network, Probe
from prophet_scheduler.learn.serial import SerialMonitor

MIXED = (256 << 10, 512 << 10, 1 << 20, 2 << 20)


Rows = list[tuple[float, int, int, int, int, int, int]]


def operation(number: int, size: int, start_s: float, end_s: float) -> Rows:
    times = (start_s, EventKind.START), (end_s, EventKind.FINISH)
    return [(time_s, number, size, 0, QueueKind.PUSH, kind, 0) for time_s, kind in times]


def in_time(rows: Rows) -> NDArray[Any]:
    return np.sort(np.array(rows, EVENT_DTYPE), order="time_s", kind="stable")


def played(
    sizes: list[int], overhead_s: float, rate: float, late: float = 0.0, in_flight: int = 4, begin_s: float = 10.0
) -> NDArray[Any]:
    """Events of a server that takes operations in turn, the next ones issued ahead; a share finds a late rank."""
    chance = random.Random(3)
    rows: Rows = []
    ends: list[float] = []
    for number, size in enumerate(sizes):
        start_s = ends[number - in_flight] if number >= in_flight else begin_s
        end_s = max(start_s, ends[-1] if ends else begin_s) + (overhead_s + size / rate) * chance.uniform(0.95, 1.05)
        end_s += 0.05 if chance.random() < late else 0.0
        ends.append(end_s)
        rows += operation(number, size, start_s, end_s)
    return in_time(rows)


def known(monitor: SerialMonitor) -> Network:
    network = monitor.network
    assert network is not None
    return network


def mixed(count: int) -> list[int]:
    """Sizes like those of a job's first blocks: stretches of one size each."""
    return [MIXED[number // 12 % len(MIXED)] for number in range(count)]


@pytest.mark.parametrize(("overhead_s", "rate"), [(1e-3, 312.5e6), (1e-3, 31.25e6), (0.2e-3, 1.25e9), (1e-3, 5e9)])
def test_overhead_and_rate_are_told_apart(overhead_s: float, rate: float) -> None:
    monitor = SerialMonitor()
    monitor.observe(played(mixed(480), overhead_s, rate))
    network = known(monitor)
    for size in (64 << 10, 512 << 10, 4 << 20):
        assert network.transfer_s(size) == pytest.approx(overhead_s + size / rate, rel=0.15)


def delayed(count: int, delay_s: float, rate: float, at_once: int, size: int, begin_s: float = 10.0) -> NDArray[Any]:
    """Events of operations that are each delayed, `at_once` of them under way: others travel meanwhile."""
    rows: Rows = []
    ends: list[float] = []
    for number in range(count):
        start_s = ends[number - at_once] if number >= at_once else begin_s
        end_s = max(start_s + delay_s, ends[-1] if ends else 0.0) + size / rate
        ends.append(end_s)
        rows += operation(number, size, start_s, end_s)
    return in_time(rows)


def test_a_delay_that_too_few_operations_show_as_cost_is_told_from_it() -> None:
    delay_s, rate, sizes = 0.04, 31.25e6, (128 << 10, 256 << 10, 512 << 10)
    probe = Probe(4 << 10, delay_s + (4 << 10) / rate)
    monitor = SerialMonitor(probe)
    blind = SerialMonitor()
    for place, size in enumerate(sizes * 4):
        for each in (monitor, blind):
            each.observe(delayed(40, delay_s, rate, 3, size, 10.0 * place))
    told, untold = known(monitor), known(blind)
    assert told.ack_delay_s == pytest.approx(delay_s, rel=0.2)
    for size in sizes:
        assert abs(told.transfer_s(size) - size / rate) < 0.5 * abs(untold.transfer_s(size) - size / rate)
    assert untold.ack_delay_s == 0.0


@pytest.mark.parametrize("at_once", [3, 8])
@pytest.mark.parametrize("sizes", [(128 << 10, 512 << 10, 256 << 10, 1 << 20), (512 << 10, 2 << 20)])
def test_a_long_delay_hides_neither_rate_nor_cost(at_once: int, sizes: tuple[int, ...]) -> None:
    """So few operations are under way that the wire mostly waits, as with four ranks and 5 ms at 1 Gbit/s."""
    delay_s, rate = 0.12, 83e6
    monitor = SerialMonitor(Probe(4 << 10, delay_s))
    for place, size in enumerate(sizes * 4):
        monitor.observe(delayed(24, delay_s, rate, at_once, size, 2.0 * place))
    network = known(monitor)
    assert network.ack_delay_s == pytest.approx(delay_s, rel=0.05)
    assert network.bandwidth == pytest.approx(rate, rel=0.2)
    assert network.overhead_s < 2e-3


def test_few_small_operations_on_a_long_delay_change_nothing_that_is_known() -> None:
    """Their times are the delay's: the first bytes pass faster than the link's rate, so they seem to cost half."""
    delay_s, rate, size = 0.04, 125e6, 512 << 10
    monitor = SerialMonitor(Probe(4 << 10, delay_s))
    for place, known_size in enumerate((2 << 20, 8 << 20, 4 << 20) * 4):
        monitor.observe(delayed(24, delay_s, rate, 8, known_size, 4.0 * place))
    before = known(monitor)
    monitor.disregard(60.0)
    monitor.observe(delayed(60, delay_s, 2 * rate, 3, size, 61.0))
    assert known(monitor).bandwidth == before.bandwidth == pytest.approx(rate, rel=0.2)


def in_halves(rounds: list[list[int]], overhead_s: float, rate: float, delay_s: float, at_once: int) -> NDArray[Any]:
    """Events as of gloo's all-reduce of two ranks: each sends one half, and the other once the first has come.

    Operations that are under way at once send their first halves before any second half, and their ends come in
    bursts. Each round is followed by a second of rest.
    """
    rows: Rows = []
    begin_s = 10.0
    for sizes in rounds:
        first = len(rows) // 2
        halves = [(begin_s + delay_s / 2, place, False) for place in range(at_once)]
        starts, free_s = dict.fromkeys(range(at_once), begin_s), begin_s
        while halves:
            ready_s, place, last = heapq.heappop(halves)
            free_s = max(ready_s, free_s) + (overhead_s + sizes[place] / rate) / 2
            if not last:
                heapq.heappush(halves, (free_s + delay_s / 2, place, True))
                continue
            rows += operation(first + place, sizes[place], starts[place], free_s)
            if len(starts) < len(sizes):
                heapq.heappush(halves, (free_s + delay_s / 2, len(starts), False))
                starts[len(starts)] = free_s
        begin_s = free_s + 1.0
    return in_time(rows)


@pytest.mark.parametrize(("delay_s", "at_once"), [(0.5e-3, 3), (0.04, 4), (0.04, 8)])
@pytest.mark.parametrize("overhead_s", [0.1e-3, 4e-3])
def test_ends_that_come_in_bursts_tell_the_costs(overhead_s: float, delay_s: float, at_once: int) -> None:
    rate = 31.25e6
    chance = random.Random(5)
    rounds = [[chance.choice((70 << 10, *MIXED)) for _ in range(30)] for _ in range(8)]
    monitor = SerialMonitor(Probe(4 << 10, delay_s + (4 << 10) / rate))
    monitor.observe(in_halves(rounds, overhead_s, rate, delay_s, at_once))
    network = known(monitor)
    assert network.bandwidth == pytest.approx(rate, rel=0.1)
    assert network.overhead_s == pytest.approx(overhead_s, abs=1.5e-3)


LAYER_ENDS = (
    (1.86, 88), (0.07, 68_956), (6.70, 88), (0.06, 68_956), (5.24, 68_956), (0.47, 88), (2.93, 88), (0.07, 88),
    (0.08, 68_956), (11.25, 88), (5.56, 356), (5.57, 275_832), (22.49, 275_832), (0.17, 88), (0.10, 88), (5.14, 88),
)  # fmt: skip
"""A layer of BERT-base's gradients at a thirty-fourth of their bytes, each by itself on gloo at 100 Mbit/s, three under
way: milliseconds since the last end, and bytes. When small ones end, a large one has sent half of what it has."""


def test_small_gradients_between_large_ones_make_the_wire_no_faster() -> None:
    rows: Rows = []
    ends: list[float] = []
    now_s = 10.0
    for _ in range(6):
        now_s += 0.5  # the forward pass
        first = len(ends)
        for number, (gap_ms, size) in enumerate(LAYER_ENDS * 6):
            began_s = ends[first + number - 3] if number >= 3 else now_s
            now_s += 1e-3 * gap_ms
            ends.append(now_s)
            rows += operation(first + number, size, began_s, now_s)
    monitor = SerialMonitor()
    monitor.observe(in_time(rows))
    network = known(monitor)
    rate = sum(size for _, size in LAYER_ENDS) / (1e-3 * sum(gap_ms for gap_ms, _ in LAYER_ENDS))
    assert rate == pytest.approx(12.2e6, rel=0.01)
    for size in (68_956, 275_832):
        assert network.transfer_s(size) == pytest.approx(size / rate, rel=0.15)


def test_sizes_that_are_nearly_alike_leave_the_overhead_as_it_was() -> None:
    """2 MiB and a shorter last block are such sizes: oddities at an iteration's end would count as costs of a size."""
    rate = 31.25e6
    monitor = SerialMonitor(Probe(4 << 10, 0.04))
    monitor.observe(in_halves([[2 << 20] * 7 + [434 << 10]] * 12, 0.0, rate, 0.04, 3))
    network = known(monitor)
    assert network.bandwidth == pytest.approx(rate, rel=0.1)
    assert network.overhead_s < 2e-3


def test_a_probe_that_something_else_delayed_is_not_believed() -> None:
    """No operation of the job takes as long as the probe."""
    monitor = SerialMonitor(Probe(4 << 10, 0.5))
    monitor.observe(played(mixed(480), 1e-3, 312.5e6))
    network = known(monitor)
    assert network.ack_delay_s < 0.02
    assert network.transfer_s(1 << 20) == pytest.approx(1e-3 + (1 << 20) / 312.5e6, rel=0.2)


def test_what_threads_take_to_wake_up_stays_a_cost() -> None:
    cost_s, rate = 1e-3, 312.5e6
    monitor = SerialMonitor(Probe(4 << 10, 1.5e-3 + (4 << 10) / rate))
    monitor.observe(played(mixed(480), cost_s, rate))
    assert known(monitor).overhead_s == pytest.approx(cost_s, rel=0.15)


def test_a_late_rank_now_and_then_does_not_count() -> None:
    monitor = SerialMonitor()
    monitor.observe(played(mixed(480), 1e-3, 312.5e6, late=0.02))
    assert known(monitor).transfer_s(1 << 20) == pytest.approx(1e-3 + (1 << 20) / 312.5e6, rel=0.15)


def test_from_one_size_only_the_rate_is_learned() -> None:
    monitor = SerialMonitor()
    monitor.observe(played(mixed(480), 1e-3, 312.5e6))
    before = known(monitor)
    monitor.observe(played([1 << 20] * 3000, 1e-3, 31.25e6, begin_s=100.0))
    after = known(monitor)
    assert after.overhead_s == pytest.approx(before.overhead_s)
    assert after.transfer_s(1 << 20) == pytest.approx(1e-3 + (1 << 20) / 31.25e6, rel=0.1)


def test_operations_alone_count_while_there_are_no_others() -> None:
    monitor = SerialMonitor()
    alone = [played([1 << 20], 5e-3, 312.5e6, begin_s=10.0 + number) for number in range(50)]
    monitor.observe(np.concatenate(alone))
    assert known(monitor).transfer_s(1 << 20) == pytest.approx(5e-3 + (1 << 20) / 312.5e6, rel=0.1)
    monitor.observe(played(mixed(480), 1e-3, 312.5e6, begin_s=100.0))
    assert known(monitor).transfer_s(1 << 20) == pytest.approx(1e-3 + (1 << 20) / 312.5e6, rel=0.15)


def test_the_pace_is_what_passes_from_one_end_to_the_next_whatever_operations_cost() -> None:
    """With three under way, one comes back every 30 ms, since all wait for the delay; an operation costs 8 ms."""
    size, delay_s = 256 << 10, 0.08
    monitor = SerialMonitor(Probe(4 << 10, delay_s))
    assert monitor.pace_s(size) is None
    monitor.observe(delayed(60, delay_s, size / 8e-3, 3, size))
    assert known(monitor).transfer_s(size) == pytest.approx(8e-3, rel=0.3)
    assert monitor.pace_s(size) == pytest.approx((delay_s + 8e-3) / 3, rel=0.05)
    assert monitor.pace_s(1.05 * size) is not None
    assert monitor.pace_s(2 * size) is None, "of those nothing is known"


def test_the_delay_after_a_pause_is_not_in_the_pace() -> None:
    monitor, size = SerialMonitor(Probe(4 << 10, 0.5)), 256 << 10
    for iteration in range(20):
        monitor.observe(delayed(12, 0.5, size / 0.2, 4, size, begin_s=10.0 + 3 * iteration))
    assert monitor.pace_s(size) == pytest.approx(0.2, rel=0.01)
