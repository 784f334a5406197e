"""Starts of planned pushes, by hand, on links of 10 bytes per second."""

from __future__ import annotations

import pytest

from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.timetable import Push, Timetable

NETWORK = NetworkState.of_rates([10.0] * 4, [10.0] * 4)


def push(node: int, size: float = 10.0, version: int = 0) -> Push:
    return Push(node, 0, Update(node, node, size, version), 0.0)


def timetable(*planned: Push, delay_bound: int | None = None) -> Timetable:
    table = Timetable(0, delay_bound)
    table.planned += planned
    table.book(NETWORK, 0.0)
    return table


def test_booking_keeps_the_rates_and_returns_the_rest() -> None:
    table = timetable(push(1))
    network = table.book(NETWORK, 0.0)
    assert table.busy_until_s == 1.0
    assert (network.end(2, 0, 10.0, 0.0), NETWORK.end(2, 0, 10.0, 0.0)) == (2.0, 1.0)


def test_a_push_in_flight_counts_with_its_remaining_bytes() -> None:
    first, second = push(1), push(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NetworkState.of_rates([5.0] * 4, [5.0] * 4), 0.5)
    assert (first.end_s, second.begin_s) == (1.5, 1.5)  # 5 bytes are left, at 5 bytes a second


def test_a_late_push_keeps_its_bandwidth_until_twice_its_time() -> None:
    first, second = push(1), push(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NETWORK, 1.25)
    assert second.begin_s == 1.25 + 0.2  # a fifth of it
    table.book(NETWORK, 2.0)
    assert second.begin_s == 2.0


def test_the_delay_bound_reserves_a_place_for_earlier_planned_pushes() -> None:
    # The first in order waits for its uplink; if the second went, the first would be too late.
    first, second = push(1, version=0), push(2, version=3)
    table = timetable(first, second, delay_bound=3)
    first.begin_s, second.begin_s = 5.0, 0.0
    assert table.due(2, 0.0) == ([], [])
    assert table.due(1, 0.0) == ([second], [])
    assert table.due(3, 0.0) == ([second], [first])


def test_the_slowdown_of_pushes_is_learned() -> None:
    pushes = [push(1 + place % 3) for place in range(5)]
    table = timetable(*pushes)
    now = 0.0
    for each in pushes[:3]:
        table.start(each, now)
        now += 1.4
        assert table.learned(each, now, believed=10.0) == 10.0, "an engine is not as fast as its NIC"
        table.withdraw(each)
        table.book(NETWORK, now)
    assert table.slowness == pytest.approx(1.4)
    assert (pushes[3].begin_s, pushes[3].end_s, pushes[4].begin_s) == pytest.approx((4.2, 5.6, 5.6))


def test_a_push_alone_shows_its_rate_and_a_shared_one_a_lower_limit() -> None:
    slow, beside, tiny = push(2), push(3), push(1, size=1e-3)
    table = timetable(slow, beside)
    table.start(slow, 0.0)
    table.book(NETWORK, 1.5)
    table.start(beside, 1.5)
    # The second came when the first was late, so the first had been alone.
    assert table.learned(slow, 5.0, believed=10.0) == 2.0
    assert table.learned(beside, (beside.started_s or 0.0) + 4.0, believed=3.0) == 5.0
    assert table.learned(beside, 26.5, believed=3.0) == 3.0
    table.planned.append(tiny)
    table.book(NETWORK, 30.0)
    table.start(tiny, 30.0)
    assert table.learned(tiny, 31.0, believed=3.0) == 3.0, "it depends on messages"
