"""MLfabric's links: ends of transfers, and the bandwidth left. Hand-computed cases and properties."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_mlfabric.network import Link, NetworkState, Piece, end_of
from prophet_scheduler.core.errors import UserError
from support.links import rate_at

WIDE = Link.constant(1000.0)


def test_a_transfer_uses_all_bandwidth_left_until_its_end() -> None:
    # Figure 4b: 30 MB over the rest of a path end at 7: 2 s at 2, 2 s at 4, 3 s at 6 MB/s.
    path = Link.stepwise([2.0, 4.0], [2e6, 4e6, 6e6])
    assert end_of(path, Link.constant(1e9), 30e6, 0.0) == 7.0


def test_a_rounding_remainder_does_not_delay_the_end() -> None:
    # In binary fractions 2 * (0.3 - 0.1) is a little less than 0.4, and after 0.3 nothing is left for long.
    path, pieces = Link.stepwise([0.1, 0.3, 50.0], [1.0, 2.0, 0.0, 1.0]), list[Piece]()
    assert end_of(path, WIDE, 0.5, 0.0, pieces) == pieces[-1][1] == 0.3


def test_a_reservation_is_subtracted_from_both_links() -> None:
    # Figure 4c, with a downlink of 5 that is wider than the uplink only at first.
    network = NetworkState([Link.stepwise([2.0, 4.0], [2, 4, 6]), WIDE], [WIDE, Link.constant(5)])
    assert network.reserve(0, 1, 2 * 2 + 2 * 4 + 1 * 5, 0.0) == 5.0
    up, down = network.uplinks[0], network.downlinks[1]
    assert [rate_at(up, t) for t in (0, 2, 4, 5, 9)] == [0, 0, 1, 6, 6]
    assert [rate_at(down, t) for t in (0, 2, 4, 5, 9)] == [3, 1, 0, 5, 5]


def test_a_transfer_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="from node 0 to node 1 never ends"):
        NetworkState([Link.constant(0.0), WIDE], [WIDE, WIDE]).reserve(0, 1, 1.0, 0.0)


rates = st.integers(1, 20).map(float)


@st.composite
def networks(draw: st.DrawFn) -> NetworkState:
    count = draw(st.integers(2, 5))

    def link() -> Link:
        changes = sorted(draw(st.lists(st.integers(1, 30), max_size=3, unique=True)))
        return Link.stepwise([float(c) for c in changes], [draw(rates) for _ in range(len(changes) + 1)])

    return NetworkState([link() for _ in range(count)], [link() for _ in range(count)])


@given(networks(), st.data())
def test_reservations_never_exceed_a_rate_and_account_for_every_byte(
    network: NetworkState, data: st.DataObject
) -> None:
    before, nodes = network.copy(), len(network)
    uses: dict[str, list[list[Piece]]] = {side: [[] for _ in range(nodes)] for side in ("up", "down")}
    for _ in range(data.draw(st.integers(1, 12))):
        source, destination = data.draw(st.lists(st.integers(0, nodes - 1), min_size=2, max_size=2, unique=True))
        size, start = float(data.draw(st.integers(1, 60))), float(data.draw(st.integers(0, 20)))
        end, pieces = network.pieces(source, destination, size, start)
        assert end == network.end(source, destination, size, start) == network.reserve(source, destination, size, start)
        assert sum(rate * (until - begin) for begin, until, rate in pieces) == pytest.approx(size)
        assert pieces[0][0] >= start and pieces[-1][1] == end
        uses["up"][source] += pieces
        uses["down"][destination] += pieces
    for side, was, left in (("up", before.uplinks, network.uplinks), ("down", before.downlinks, network.downlinks)):
        for node in range(nodes):
            edges = {0.0, 1e3, *left[node].times[1:-1], *was[node].times[1:-1]}
            edges |= {edge for piece in uses[side][node] for edge in piece[:2]}
            for begin, until in zip(sorted(edges), sorted(edges)[1:], strict=False):
                if until - begin < 1e-9:
                    continue
                at = (begin + until) / 2
                used = sum(rate for since, to, rate in uses[side][node] if since <= at < to)
                assert used <= rate_at(was[node], at) * (1 + 1e-9)
                assert rate_at(left[node], at) == pytest.approx(rate_at(was[node], at) - used, abs=1e-9)


def test_forgetting_keeps_the_future() -> None:
    network = NetworkState([Link.stepwise([2.0, 9.0], [5, 3, 1]), WIDE], [WIDE, WIDE])
    ends = network.end(0, 1, 40.0, 4.0)
    network.forget(4.0)
    assert network.uplinks[0].times == [-math.inf, 9.0, math.inf]
    assert network.end(0, 1, 40.0, 4.0) == ends
