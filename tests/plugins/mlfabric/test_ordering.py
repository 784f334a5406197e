"""Algorithms 1 and 2 of MLfabric: the paper's examples and listings, brute force, properties."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Ordering, Update, order_updates

SERVER = 0
Batch: TypeAlias = tuple[list[Update], NetworkState]


def star(uplinks: Sequence[float], server: float = 100.0) -> NetworkState:
    """The server is node 0, the workers' nodes follow."""
    count = len(uplinks) + 1
    return NetworkState.of_rates([1000.0, *map(float, uplinks)], [server] + [1000.0] * (count - 1))


def ids(updates: Sequence[Update]) -> list[int]:
    return [update.id for update in updates]


def ends_of(ordering: Ordering, network: NetworkState) -> list[float]:
    """Return the end of each transfer of the order straight to the server."""
    state = network.copy()
    return [state.reserve(update.node, SERVER, update.size_bytes, 0.0) for update in ordering.updates]


def follow_the_listing(
    ordering: Ordering, updates: list[Update], network: NetworkState, bound: int | None = None, version: int = 0
) -> None:
    """Check that each choice is one that Algorithm 1 or, with a bound, Algorithm 2 could make.

    Equal ends may be taken in any order: the listings leave that open.
    """
    state, left, ends = network.copy(), list(updates), ends_of(ordering, network)
    for place, (update, end) in enumerate(zip(ordering.updates, ends, strict=True), start=1):
        due = [g for g in left if bound is not None and g.version + bound - version == place]
        if due:
            assert due == [update]
        else:
            assert end <= min(state.end(g.node, SERVER, g.size_bytes, 0.0) for g in left) * (1 + 1e-9)
        state.reserve(update.node, SERVER, update.size_bytes, 0.0)
        # "If next completes before current, discard current": it does not.
        assert place == len(ends) or end <= ends[place] * (1 + 1e-9)
        left.remove(update)
    assert left == []


def test_shortest_first_by_hand() -> None:
    # 30 bytes at 10 a second; 10 at 2; 20 at 5: alone they take 3, 5 and 4 seconds, the server takes 10 a second.
    updates = [Update(0, 1, 30.0), Update(1, 2, 10.0), Update(2, 3, 20.0)]
    network = star([10, 2, 5], server=10.0)
    ordering = order_updates(updates, network, SERVER, 0.0)
    # The first has the server for 3 s; after it the third needs 4 s, and beside it the second has 2 a second.
    assert (ids(ordering.updates), ends_of(ordering, network)) == ([0, 2, 1], [3.0, 7.0, 8.0])
    assert ordering.dropped == ()


def test_figure_1_the_oldest_update_is_among_the_first_u() -> None:
    # N' = 4 updates, tau_max = 6, v_st = 10; update 3 was made from version 10 - 6 + 2 (u = 2), the others are fresh.
    # By size alone it would be the last.
    updates = [Update(0, 1, 10.0, 10), Update(1, 2, 20.0, 10), Update(2, 3, 30.0, 10), Update(3, 4, 40.0, 6)]
    network = star([100] * 4, server=10.0)
    assert ids(order_updates(updates, network, SERVER, 0.0).updates) == [0, 1, 2, 3]
    ordering = order_updates(updates, network, SERVER, 0.0, 6, 10)
    assert ids(ordering.updates) == [0, 3, 1, 2]
    assert ordering.dropped == ()
    # Its delay is then exactly tau_max, and the last transfer ends when it would have anyway.
    assert 10 + 2 - 6 == 6
    assert ends_of(ordering, network) == [1.0, 5.0, 7.0, 10.0]


def test_figure_5_an_update_that_would_delay_the_server_is_dropped() -> None:
    # 100 Mbit each: w1 at 10 Mbit/s with deadline 1, w2 at 100 Mbit/s with deadline 5, the server at 100.
    network = star([10, 100], server=100.0)
    g1, g2 = Update(1, 1, 100.0, version=0), Update(2, 2, 100.0, version=4)
    ordering = order_updates([g1, g2], network, SERVER, 0.0, 1, 0)
    assert (ids(ordering.updates), ids(ordering.dropped)) == ([2], [1])
    # The bandwidth of g1 is free again: beside g1 the third would end before the second.
    network, g3 = star([10, 100, 10], server=100.0), Update(3, 3, 10.5, version=4)
    assert ids(order_updates([g1, g2, g3], network, SERVER, 0.0, 1, 0).updates) == [2, 3]
    # With time to spare it comes after the other; the server's link has room beside it from 1 s on.
    assert ids(order_updates([g1, g2], network, SERVER, 0.0, 2, 0).updates) == [2, 1]


def test_the_longest_of_too_many_urgent_updates_are_dropped() -> None:
    updates = [Update(0, 1, 30.0), Update(1, 2, 10.0), Update(2, 3, 20.0), Update(3, 4, 5.0, version=9)]
    ordering = order_updates(updates, star([100] * 4), SERVER, 0.0, 2, 0)
    assert (ids(ordering.updates), ids(ordering.dropped)) == ([1, 2, 3], [0])
    assert order_updates(updates[:1], star([1]), SERVER, 0.0, 5, 8) == Ordering((), (updates[0],)), "it is too old"
    assert order_updates([], star([1]), SERVER, 0.0, 3, 0) == Ordering((), ())


@st.composite
def batches(draw: st.DrawFn, most: int = 8, span: int = 12) -> Batch:
    """Workers' rates, the server's, earlier transfers under way, and a batch with versions from 0 to `span`.

    Two updates may share a node, and that may be the server's.
    """
    uplinks = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    updates = [
        Update(place, draw(st.integers(0, len(uplinks))), float(draw(st.integers(0, 40))), draw(st.integers(0, span)))
        for place in range(draw(st.integers(1, most)))
    ]
    network = star(uplinks, server=float(draw(st.integers(1, 40))))
    for _ in range(draw(st.integers(0, 3))):
        network.reserve(draw(st.integers(1, len(uplinks))), SERVER, float(draw(st.integers(1, 40))), 0.0)
    return updates, network


@given(batches())
def test_without_deadlines_it_is_algorithm_1(batch: Batch) -> None:
    updates, network = batch
    follow_the_listing(order_updates(updates, network, SERVER, 0.0), updates, network)


@given(batches(most=6), st.permutations(range(6)), st.integers(0, 4))
def test_with_distinct_deadlines_and_no_drops_it_is_algorithm_2(batch: Batch, versions: list[int], spare: int) -> None:
    given_updates, network = batch
    updates = [replace(update, version=versions[place]) for place, update in enumerate(given_updates)]
    ordering = order_updates(updates, network, SERVER, 0.0, 1 + spare, 0)
    if not ordering.dropped:
        follow_the_listing(ordering, updates, network, 1 + spare)


@given(batches(), st.integers(1, 12), st.integers(0, 8))
def test_no_delay_exceeds_the_bound_and_every_update_is_ordered_or_dropped(
    batch: Batch, bound: int, version: int
) -> None:
    updates, network = batch
    before = [*network.uplinks, *network.downlinks]
    ordering = order_updates(updates, network, SERVER, 0.0, bound, version)
    assert before == [*network.uplinks, *network.downlinks]
    for place, update in enumerate(ordering.updates, start=1):
        assert version + place - update.version <= bound
    assert sorted(ids(ordering.updates) + ids(ordering.dropped)) == ids(updates)
    # If nothing was dropped, ends never fall: updates are applied as they arrive.
    ends = ends_of(ordering, network)
    assert ordering.dropped or all(before <= after * (1 + 1e-9) for before, after in pairwise(ends))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_with_one_narrow_link_no_order_has_a_smaller_mean(sizes: list[int]) -> None:
    updates = [Update(place, place + 1, float(size)) for place, size in enumerate(sizes)]
    network = star([50] * len(sizes), server=10.0)

    def total(order: Sequence[Update]) -> float:
        state = network.copy()
        return sum(state.reserve(g.node, SERVER, g.size_bytes, 0.0) for g in order)

    least = min(total(order) for order in permutations(updates))
    assert total(order_updates(updates, network, SERVER, 0.0).updates) == pytest.approx(least)
