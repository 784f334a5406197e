"""Algorithm 3 of MLfabric and its mirror for models: the paper's figures, its listing, properties."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.aggregation import Aggregation, Hop, aggregate, distribute
from prophet_mlfabric.network import NetworkState
from prophet_mlfabric.ordering import Update

SERVER = 0
Instance: TypeAlias = tuple[list[Update], NetworkState, list[int]]
Assigned: TypeAlias = list[int | None]
"""The aggregator of each update; None for one that goes straight to the server."""


def even(nodes: int, rate: float = 1.0) -> NetworkState:
    return NetworkState.of_rates([rate] * nodes, [rate] * nodes)


def updates(count: int, first_node: int = 1, size: float = 1.0) -> list[Update]:
    return [Update(place, first_node + place, size) for place in range(count)]


def shape(aggregation: Aggregation) -> list[tuple[list[int], int | None]]:
    return [([update.id for update in group.updates], group.aggregator) for group in aggregation.groups]


def listing(
    order: list[Update],
    network: NetworkState,
    aggregators: Sequence[int],
    now_s: float = 0.0,
    busy_until_s: float = -math.inf,
) -> tuple[float, Assigned | None]:
    """Algorithm 3 as printed, every case to its end, with the two corrections that docs/policies/mlfabric.md lists."""

    def det_agg(direct: int) -> tuple[float, Assigned | None]:
        state, latest = network.copy(), max(now_s, busy_until_s)
        assigned: Assigned = []
        for update in order[:direct]:
            latest = max(latest, state.reserve(update.node, SERVER, update.size_bytes, now_s))
            assigned.append(None)
        place, which, ready, size = direct, 0, -math.inf, 0.0
        while place < len(order):
            if which == len(aggregators):
                return math.inf, None
            update, node = order[place], aggregators[which]
            end = state.end(update.node, node, update.size_bytes, now_s)
            if end > latest:
                if size:
                    latest = max(latest, state.reserve(node, SERVER, size, ready))
                which, ready, size = which + 1, -math.inf, 0.0
                continue
            assigned.append(node)
            state.reserve(update.node, node, update.size_bytes, now_s)
            ready, size, place = max(ready, end), max(size, update.size_bytes), place + 1
        if size:
            latest = max(latest, state.reserve(aggregators[which], SERVER, size, ready))
        return latest, assigned

    return min((det_agg(direct) for direct in range(len(order) + 1)), key=lambda case: case[0])


def test_figure_2_two_straight_and_a_sum_of_two() -> None:
    groups = aggregate(updates(4), even(6), SERVER, [5], 0.0)
    assert shape(groups) == [([0], None), ([1], None), ([2, 3], 5)]
    assert groups.groups[2].applied_s == groups.end_s == 3.0
    # Without the aggregator the fourth arrives at 4.
    assert aggregate(updates(4), even(6), SERVER, [], 0.0).end_s == 4.0


def test_no_run_exceeds_its_maximum_weight() -> None:
    groups = aggregate(updates(4), even(6), SERVER, [4, 5], 0.0, 9.0, weights=[1.0, 1.0, 1.5, 9.0], most=2.0)
    for group in groups.groups:
        assert len(group.updates) == 1 or [u.id for u in group.updates] == [0, 1]


@st.composite
def orders(draw: st.DrawFn, most: int = 7, uniform: bool = False) -> Instance:
    nodes = draw(st.integers(2, 6))
    speed = st.just(4) if uniform else st.integers(1, 12)
    network = NetworkState.of_rates(
        [float(draw(speed)) for _ in range(nodes)], [float(draw(speed)) for _ in range(nodes)]
    )
    if not uniform:  # earlier batches are still under way
        for _ in range(draw(st.integers(0, 4))):
            ends = draw(st.permutations(range(nodes)))
            network.reserve(ends[0], ends[1], float(draw(st.integers(1, 20))), 0.0)
    size = st.just(8) if uniform else st.integers(1, 20)
    order = [
        Update(place, draw(st.integers(1, nodes - 1)), float(draw(size))) for place in range(draw(st.integers(1, most)))
    ]
    aggregators = draw(st.permutations(range(1, nodes)))[: draw(st.integers(0, nodes - 1))]
    return order, network, aggregators


@given(orders(), st.floats(-1, 12))
def test_aggregation_equals_the_listing(instance: Instance, busy_until_s: float) -> None:
    order, network, aggregators = instance
    groups = aggregate(order, network, SERVER, aggregators, 0.0, busy_until_s)
    end, assigned = listing(order, network, aggregators, 0.0, busy_until_s)
    assert groups.end_s == end
    assert [group.aggregator for group in groups.groups for _ in group.updates] == assigned


@given(orders(), st.floats(-1, 12))
def test_aggregation_keeps_the_order_and_never_delays_the_server(instance: Instance, busy_until_s: float) -> None:
    order, network, aggregators = instance
    before = [link.rates for link in network.downlinks]
    groups = aggregate(order, network, SERVER, aggregators, 0.0, busy_until_s)
    assert [update for group in groups.groups for update in group.updates] == order
    assert groups.end_s <= aggregate(order, network, SERVER, [], 0.0, busy_until_s).end_s
    assert [link.rates for link in network.downlinks] == before
    # The same transfers, made one by one, arrive at the same times and leave the same network.
    again, latest = network.copy(), max(0.0, busy_until_s)
    for group in groups.groups:
        source, start = group.updates[0].node, 0.0
        if group.aggregator is not None:
            source = group.aggregator
            start = max(again.reserve(update.node, source, update.size_bytes, 0.0) for update in group.updates)
            assert start <= latest, "the server's NIC never waits"
        latest = max(latest, again.reserve(source, SERVER, group.size_bytes, start))
        assert group.applied_s == latest
    assert [link.rates for link in again.downlinks] == [link.rates for link in groups.network.downlinks]
    assert [link.times for link in again.uplinks] == [link.times for link in groups.network.uplinks]


def ends_of(hops: Sequence[Hop], size_bytes: float, network: NetworkState, now_s: float) -> list[float]:
    """Return the end of each hop."""
    state, ends = network.copy(), list[float]()
    for hop in hops:
        start = now_s if hop.after is None else ends[hop.after]
        ends.append(state.reserve(hop.source, hop.destination, size_bytes, start))
    return ends


def test_distribution_is_figure_2_reversed() -> None:
    # Four readers, one distributor: the server sends to it first, then two of its own; the last has it at 3, not 4.
    hops = distribute([1, 2, 3, 4], 1.0, even(6), SERVER, [5], 0.0)
    ends = ends_of(hops, 1.0, even(6), 0.0)
    assert (hops[0].source, hops[0].destination, hops[0].reader, ends[0]) == (SERVER, 5, None, 1.0)
    assert sorted(end for hop, end in zip(hops, ends, strict=True) if hop.source == 5) == [2.0, 3.0]
    assert sorted(end for hop, end in zip(hops, ends, strict=True) if hop.source == SERVER) == [1.0, 2.0, 3.0]
    assert max(ends_of(distribute([1, 2, 3, 4], 1.0, even(6), SERVER, [], 0.0), 1.0, even(6), 0.0)) == 4.0


@given(orders(), st.floats(0, 3))
def test_every_reader_gets_the_model_once_after_its_source(instance: Instance, now_s: float) -> None:
    order, network, distributors = instance
    readers = [update.node for update in order]
    hops = distribute(readers, 5.0, network, SERVER, distributors, now_s)
    assert sorted(hop.reader for hop in hops if hop.reader is not None) == list(range(len(readers)))
    for place, hop in enumerate(hops):
        assert hop.after is None or (hop.after < place and hops[hop.after].destination == hop.source)
        assert (hop.after is None) == (hop.source == SERVER)
        assert hop.reader is None or hop.destination == readers[hop.reader]
