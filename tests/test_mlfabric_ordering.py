"""Algorithms 1 and 2 of MLfabric: the paper's examples, its listings word for word, brute force, properties."""

import math
from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet.errors import UserError
from prophet.mlfabric.network import NetworkState
from prophet.mlfabric.ordering import Update, order_updates, shortest_first

SERVER = 0


def star(uplinks, server=100.0):
    """The server is node 0, the workers' nodes follow."""
    count = len(uplinks) + 1
    return NetworkState.of_rates([1000.0, *map(float, uplinks)], [server] + [1000.0] * (count - 1))


def ids(updates):
    return [update.id for update in updates]


def listing_1(updates, network):
    """Algorithm 1, word for word."""
    network, left, order = network.copy(), list(updates), []
    while left:
        shortest = min(left, key=lambda g: network.end(g.node, SERVER, g.size_bytes, 0.0))
        order.append((shortest.id, network.reserve(shortest.node, SERVER, shortest.size_bytes, 0.0)))
        left.remove(shortest)
    return order


def listing_2(updates, network, bound, version):
    """Algorithm 2, word for word; None where it drops something or two deadlines are alike."""
    network, left, order = network.copy(), list(updates), []
    deadline = {g.id: g.version + bound - version for g in updates}
    if len(set(deadline.values())) < len(updates):
        return None

    def pick(place, among, state):
        due = [g for g in among if deadline[g.id] == place]
        return due[0] if due else min(among, key=lambda g: state.end(g.node, SERVER, g.size_bytes, 0.0))

    for place in range(1, len(updates) + 1):
        current = pick(place, left, network)
        left.remove(current)
        after = network.copy()
        end = after.reserve(current.node, SERVER, current.size_bytes, 0.0)
        if left:
            following = pick(place + 1, left, after)
            if end > after.end(following.node, SERVER, following.size_bytes, 0.0):
                return None
        order.append((current.id, end))
        network = after
    return order


def test_shortest_first_by_hand():
    # 30 bytes at 10 a second; 10 at 2; 20 at 5: alone they take 3, 5 and 4 seconds, the server takes 10 a second.
    updates = [Update(0, 1, 30.0), Update(1, 2, 10.0), Update(2, 3, 20.0)]
    ordering = shortest_first(updates, star([10, 2, 5], server=10.0), SERVER, 0.0)
    # The first has the server for 3 s; after it the third needs 4 s, and beside it the second has 2 a second.
    assert [(one.update.id, one.end_s) for one in ordering.order] == [(0, 3.0), (2, 7.0), (1, 8.0)]
    assert ordering.dropped == ()


def test_figure_1_the_oldest_update_is_among_the_first_u():
    # N' = 4 updates, tau_max = 6, v_st = 10; update 3 was made from version 10 - 6 + 2 (u = 2), the others are fresh.
    # By size alone it would be the last.
    updates = [Update(0, 1, 10.0, 10), Update(1, 2, 20.0, 10), Update(2, 3, 30.0, 10), Update(3, 4, 40.0, 6)]
    network = star([100] * 4, server=10.0)
    assert ids(shortest_first(updates, network, SERVER, 0.0).updates) == [0, 1, 2, 3]
    ordering = order_updates(updates, network, SERVER, 0.0, 6, 10)
    assert ids(ordering.updates) == [0, 3, 1, 2]
    assert ordering.dropped == ()
    # Its delay is then exactly tau_max, and the last transfer ends when it would have anyway.
    assert 10 + 2 - 6 == 6
    assert [one.end_s for one in ordering.order] == [1.0, 5.0, 7.0, 10.0]


def test_figure_5_an_update_that_would_hold_up_the_server_is_dropped():
    # 100 Mbit each: w1 at 10 Mbit/s with deadline 1, w2 at 100 Mbit/s with deadline 5, the server at 100.
    network = star([10, 100], server=100.0)
    g1, g2 = Update(1, 1, 100.0, version=0), Update(2, 2, 100.0, version=4)
    ordering = order_updates([g1, g2], network, SERVER, 0.0, 1, 0)
    assert ids(ordering.dropped) == [1]
    assert [(one.update.id, one.end_s) for one in ordering.order] == [(2, 1.0)]
    # What g1 would have taken is free again.
    assert ordering.network.uplinks[1].rates == [10.0]
    # With time to spare it comes after the other; the server's link has room beside it from 1 s on.
    assert ids(order_updates([g1, g2], network, SERVER, 0.0, 2, 0).updates) == [2, 1]


def test_of_updates_that_cannot_all_be_in_time_the_longest_are_dropped():
    updates = [Update(0, 1, 30.0), Update(1, 2, 10.0), Update(2, 3, 20.0), Update(3, 4, 5.0, version=9)]
    ordering = order_updates(updates, star([100] * 4), SERVER, 0.0, 2, 0)
    assert ids(ordering.dropped) == [0]
    assert ids(ordering.updates) == [1, 2, 3]


def test_updates_older_than_the_bound_are_dropped():
    ordering = order_updates([Update(0, 1, 1.0, version=3)], star([1]), SERVER, 0.0, 5, 8)
    assert (ids(ordering.updates), ids(ordering.dropped)) == ([], [0])


def test_no_updates_are_no_order():
    assert order_updates([], star([1]), SERVER, 0.0, 3, 0).order == ()


def test_the_network_given_is_left_as_it_is():
    network = star([3, 4])
    order_updates([Update(0, 1, 1.0), Update(1, 2, 1.0)], network, SERVER, 0.0, 1, 0)
    assert [link.rates for link in network.uplinks] == [[1000.0], [3.0], [4.0]]


@pytest.mark.parametrize("wrong", [{"size_bytes": -1.0}, {"size_bytes": math.nan}, {"norm": -0.1}, {"norm": math.inf}])
def test_an_impossible_update_is_one_line(wrong):
    with pytest.raises(UserError, match=r"update 7: .* give numbers of 0 or more"):
        Update(**{"id": 7, "node": 1, "size_bytes": 1.0, **wrong})


@st.composite
def batches(draw, most=8, span=12):
    """Workers' rates, the server's, and a batch with versions from 0 to `span`. Two updates may share a node."""
    uplinks = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    count = draw(st.integers(1, most))
    updates = [
        Update(
            place,
            draw(st.integers(1, len(uplinks))),
            float(draw(st.integers(1, 40))),
            draw(st.integers(0, span)),
        )
        for place in range(count)
    ]
    return updates, star(uplinks, server=float(draw(st.integers(1, 40))))


@settings(max_examples=150, deadline=None)
@given(batches())
def test_without_deadlines_it_is_algorithm_1(batch):
    updates, network = batch
    ends = [one.end_s for one in shortest_first(updates, network, SERVER, 0.0).order]
    # Ends rather than ids: equals may change places, and the listing leaves that open.
    if len({round(end, 6) for end in ends}) == len(ends):
        assert ends == pytest.approx([end for _, end in listing_1(updates, network)])


@settings(max_examples=150, deadline=None)
@given(batches(most=6, span=9), st.integers(1, 4))
def test_with_distinct_deadlines_and_no_drops_it_is_algorithm_2(batch, bound):
    updates, network = batch
    listed = listing_2(updates, network, bound, 0)
    ordering = order_updates(updates, network, SERVER, 0.0, bound, 0)
    ends = [one.end_s for one in ordering.order]
    if listed is not None and len({round(end, 6) for end in ends}) == len(ends):
        assert ordering.dropped == ()
        assert ends == pytest.approx([end for _, end in listed])


@settings(max_examples=200, deadline=None)
@given(batches(), st.integers(1, 12), st.integers(0, 8))
def test_no_delay_passes_the_bound_and_every_update_is_ordered_or_dropped_once(batch, bound, version):
    updates, network = batch
    ordering = order_updates(updates, network, SERVER, 0.0, bound, version)
    for place, update in enumerate(ordering.updates, start=1):
        assert version + place - update.version <= bound
    assert sorted(ids(ordering.updates) + ids(ordering.dropped)) == ids(updates)
    # Where nothing was dropped ends never fall: updates are applied as they arrive, nobody waits at the server.
    ends = [one.end_s for one in ordering.order]
    assert ordering.dropped or all(before <= after * (1 + 1e-9) for before, after in pairwise(ends))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 4))
def test_on_equal_nics_no_order_keeps_more_updates(versions, bound):
    # Nobody is overtaken when all are alike, so only deadlines that cannot be met cost updates.
    updates = [Update(place, place + 1, 10.0, version) for place, version in enumerate(versions)]
    network = star([10] * len(updates), server=10.0)

    def kept(order):
        count = 0
        for update in order:
            count += update.version + bound >= count + 1
        return count

    best = max(kept(order) for order in permutations(updates))
    assert len(order_updates(updates, network, SERVER, 0.0, bound, 0).order) == best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_where_the_servers_link_is_the_only_narrow_one_no_order_has_a_smaller_mean(sizes):
    updates = [Update(place, place + 1, float(size)) for place, size in enumerate(sizes)]
    network = star([50] * len(sizes), server=10.0)

    def total(order):
        state = network.copy()
        return sum(state.reserve(g.node, SERVER, g.size_bytes, 0.0) for g in order)

    found = sum(one.end_s for one in shortest_first(updates, network, SERVER, 0.0).order)
    assert found == pytest.approx(min(total(order) for order in permutations(updates)))
