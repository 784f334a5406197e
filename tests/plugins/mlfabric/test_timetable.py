"""Tests of when planned transfers start: by hand, on links of 10 bytes per second."""

from __future__ import annotations

from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.scheduler import Kind, PlannedTransfer
from prophet_mlfabric.timetable import Timetable

NETWORK = NetworkState.of_rates([10.0] * 4, [10.0] * 4)


def direct(node: int, size: float = 10.0, version: int = 0) -> PlannedTransfer:
    return PlannedTransfer(Kind.DIRECT, node, 0, size, (Update(node, node, size, version),))


def timetable(*planned: PlannedTransfer, delay_bound: int | None = None) -> Timetable:
    table = Timetable(0, delay_bound)
    table.planned += planned
    table.book(NETWORK, 0.0)
    return table


def test_reckoning_leaves_the_rates_as_they_were_and_says_what_is_left() -> None:
    table = timetable(direct(1))
    network = table.book(NETWORK, 0.0)
    assert table.busy_until_s == 1.0
    assert (network.end(2, 0, 10.0, 0.0), NETWORK.end(2, 0, 10.0, 0.0)) == (2.0, 1.0)


def test_what_is_under_way_counts_with_what_is_left_of_it() -> None:
    first, second = direct(1), direct(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NetworkState.of_rates([5.0] * 4, [5.0] * 4), 0.5)
    assert (first.end_s, second.begin_s) == (1.5, 1.5)  # 5 bytes are left, at 5 bytes a second


def test_one_that_is_late_needs_as_long_again_and_is_believed_no_longer_after_twice_its_time() -> None:
    first, second = direct(1), direct(2)
    table = timetable(first, second)
    table.start(first, 0.0)
    table.book(NETWORK, 1.25)
    assert second.begin_s == 1.25 + 0.2  # a fifth of it
    table.book(NETWORK, 2.0)
    assert second.begin_s == 2.0
    assert table.overdue(1.5) == [first] and table.overdue(1.0) == []


def test_a_sum_waits_for_its_aggregator_and_the_wire_does_not() -> None:
    leg = PlannedTransfer(Kind.TO_AGGREGATOR, 1, 2, 10.0, (Update(1, 1, 10.0),))
    total = PlannedTransfer(Kind.SUM, 2, 0, 10.0, leg.updates, (leg,), ready=False)
    other = direct(3)
    table = timetable(leg, total, other)
    # The other one has the wire while the sum is gathered, in the order of the schedule after it.
    assert (total.begin_s, other.begin_s) == (1.0, 0.0)
    assert table.due(0, 0.0)[0] == [leg, other]
    table.start(leg, 0.0)
    table.withdraw(leg)
    table.book(NETWORK, 1.5)
    assert other.begin_s == 1.5
    assert table.due(0, 1.5)[0] == [other]
    total.ready = True
    table.book(NETWORK, 1.5)
    assert table.due(0, 1.5)[0] == [total]


def test_the_delay_bound_keeps_a_place_for_one_that_was_planned_before() -> None:
    # The first in order waits for its uplink; if the second went, the first would be too late.
    first, second = direct(1, version=0), direct(2, version=3)
    table = timetable(first, second, delay_bound=3)
    first.begin_s, second.begin_s = 5.0, 0.0
    assert table.due(2, 0.0) == ([], [])
    assert table.due(1, 0.0) == ([second], [])


def test_the_updates_of_a_sum_have_their_own_places() -> None:
    updates = (Update(1, 1, 10.0, version=0), Update(2, 2, 10.0, version=1))
    total = PlannedTransfer(Kind.SUM, 3, 0, 10.0, updates)
    table = timetable(total, delay_bound=1)
    # Applied one after another they have delays of 1 and 1; with one version more, of 2.
    assert table.due(0, 0.0) == ([total], [])
    assert table.due(1, 0.0) == ([], [total])
    assert table.outstanding == 2


def test_how_much_longer_than_by_the_rates_transfers_take_is_learned() -> None:
    transfers = [direct(1 + place % 3) for place in range(6)]
    table = timetable(*transfers)
    now = 0.0
    for transfer in transfers[:3]:
        table.start(transfer, now)
        now += 2.0
        table.ended(transfer, now)
        table.book(NETWORK, now)
    assert table.slowness == 2.0
    assert (transfers[3].begin_s, transfers[3].end_s, transfers[4].begin_s) == (6.0, 8.0, 8.0)
    table.start(transfers[3], now)
    table.ended(transfers[3], now + 2.0)
    assert table.slowness == 2.0  # of the rates, and not of what was expected
    table.withdraw(transfers[4])
    assert table.slowness == 2.0 and not table.under_way
