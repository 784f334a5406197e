"""Tests of when planned pushes start: by hand, on links of 10 bytes per second."""

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


def test_reckoning_leaves_the_rates_as_they_were_and_says_what_is_left() -> None:
    table = timetable(push(1))
    network = table.book(NETWORK, 0.0)
    assert table.busy_until_s == 1.0
    assert (network.end(2, 0, 10.0, 0.0), NETWORK.end(2, 0, 10.0, 0.0)) == (2.0, 1.0)


def test_what_is_under_way_counts_with_what_is_left_of_it() -> None:
    first, second = push(1), push(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NetworkState.of_rates([5.0] * 4, [5.0] * 4), 0.5)
    assert (first.end_s, second.begin_s) == (1.5, 1.5)  # 5 bytes are left, at 5 bytes a second


def test_one_that_is_late_needs_as_long_again_and_is_believed_no_longer_after_twice_its_time() -> None:
    first, second = push(1), push(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NETWORK, 1.25)
    assert second.begin_s == 1.25 + 0.2  # a fifth of it
    table.book(NETWORK, 2.0)
    assert second.begin_s == 2.0


def test_the_delay_bound_keeps_a_place_for_one_that_was_planned_before() -> None:
    # The first in order waits for its uplink; if the second went, the first would be too late.
    first, second = push(1, version=0), push(2, version=3)
    table = timetable(first, second, delay_bound=3)
    first.begin_s, second.begin_s = 5.0, 0.0
    assert table.due(2, 0.0) == ([], [])
    assert table.due(1, 0.0) == ([second], [])
    assert table.due(3, 0.0) == ([second], [first])


def test_how_much_longer_than_by_the_rates_pushes_take_is_learned() -> None:
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


def test_a_push_alone_shows_its_nics_rate_and_one_that_shared_the_link_half_of_it_or_more() -> None:
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
