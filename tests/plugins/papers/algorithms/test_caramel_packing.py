"""Caramel's batches, their depth and where they are packed, by hand and against every order on small cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_papers.algorithms.caramel.batching import MAX_DEPTH, Batch, adaptive_depth, batch, threshold_bytes
from prophet_papers.algorithms.caramel.packing import PackedSlot, Place, pack
from prophet_scheduler.core.network import Network
from support.profiles import profile

UNIT = Network(1.0)
"""One byte a second without overhead: bytes are seconds."""


# ---- batching


@given(st.floats(1e-6, 1e-1), st.floats(1e3, 1e11))
def test_the_threshold_is_the_papers(overhead_s: float, bandwidth: float) -> None:
    line = Network(bandwidth, overhead_s)
    threshold = threshold_bytes(line)
    joined, small, large = (
        line.transfer_s(2 * size) / (2 * line.transfer_s(size))
        for size in (threshold, 0.9 * threshold, 1.1 * threshold)
    )
    assert small <= joined == pytest.approx(0.8)
    assert joined <= large


def batched(rows: Sequence[tuple[int, float]], network: Network, threshold: float | None = None) -> list[Batch]:
    """Batches of gradients of (bytes, generated_s), in the order of generation; each layer's forward takes a second."""
    return list(batch(profile(*((size, at, 1.0) for size, at in reversed(rows))), network, threshold))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # An idle network takes a gradient at once.
        ([(1, 0.0), (1, 9.0)], [[1], [0]]),
        # The first of 1 + 2 s keeps it busy till 3, so those of 1 and 2 are joined; at 3 it is free before 4.
        ([(2, 0.0), (1, 1.0), (1, 2.0), (1, 4.0)], [[3], [2, 1], [0]]),
        # Above the threshold of 5 bytes: alone, and ahead of a batch that is open.
        ([(4, 0.0), (1, 1.0), (9, 2.0), (1, 3.0)], [[3], [1], [2, 0]]),
        # More than 5 bytes together: the batch is closed and waits its turn.
        ([(20, 0.0), (3, 1.0), (3, 2.0), (3, 3.0), (1, 40.0)], [[4], [3, 2], [1], [0]]),
        # Gradients that appear together are joined.
        ([(1, 1.0), (1, 1.0), (1, 1.0)], [[2, 1, 0]]),
    ],
)
def test_batches_by_hand(rows: list[tuple[int, float]], expected: list[list[int]]) -> None:
    assert [list(one.members) for one in batched(rows, Network(1.0, 1.0), 5.0)] == expected


def test_a_batch_is_ready_with_its_last_and_read_with_its_first_member() -> None:
    assert batched([(3, 0.0), (1, 1.0), (2, 1.0), (9, 2.0)], UNIT, 5.0) == [
        Batch((3,), 3, 0.0, 3.0),
        Batch((0,), 9, 2.0, 0.0),
        Batch((2, 1), 3, 1.0, 1.0),
    ]
    assert len(batched([(1, 0.0), (1, 0.0)], UNIT)) == 2, "a network without overhead joins nothing"


ROWS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 20)), min_size=1, max_size=12)


@given(ROWS, st.integers(0, 20), st.integers(0, 3))
def test_every_gradient_is_in_exactly_one_batch(rows: list[tuple[int, int]], threshold: int, overhead: int) -> None:
    in_order = [(size, float(at)) for size, at in sorted(rows, key=lambda row: row[1])]
    batches = batched(in_order, Network(1.0, float(overhead)), float(threshold))
    assert sorted(index for one in batches for index in one.members) == list(range(len(rows)))
    for one in batches:
        members = [in_order[-1 - index] for index in one.members]
        assert one.size_bytes == sum(size for size, _ in members)
        assert one.generated_s == max(at for _, at in members)
        assert one.read_s == min(one.members)
        if len(members) > 1:
            assert all(size <= threshold for size, _ in members)
            assert sum(size for size, _ in members[:-1]) <= threshold, "closed when it exceeds the threshold"


# ---- depth


@pytest.mark.parametrize(
    ("size", "threshold", "depth"),
    [(1, 100.0, 1), (199, 100.0, 1), (200, 100.0, 2), (799, 100.0, 7), (800, 100.0, 8), (10**9, 100.0, 8), (1, 0.0, 8)],
)
def test_the_adaptive_depth_by_hand(size: int, threshold: float, depth: int) -> None:
    assert adaptive_depth(size, threshold) == depth


def pipelined_s(size_bytes: float, depth: int, stages: Sequence[Network]) -> float:
    """Return the seconds that `depth` equal chunks take through stages, each of which works on one at a time."""
    free = [0.0] * len(stages)
    for _ in range(depth):
        now = 0.0
        for index, stage in enumerate(stages):
            now = free[index] = max(now, free[index]) + stage.transfer_s(size_bytes / depth)
    return free[-1]


def test_the_adaptive_depth_is_always_near_the_best_and_a_fixed_one_is_not() -> None:
    # Three equally slow stages: to the wire, over it, and the sum; from 1 KB to 256 MB.
    stages = (Network(1e9, 1e-4),) * 3
    sizes = [1000 * 2**k for k in range(19)]
    threshold = threshold_bytes(stages[0])
    best_s = {size: min(pipelined_s(size, depth, stages) for depth in range(1, MAX_DEPTH + 1)) for size in sizes}

    def worst(depth_of: Callable[[int], int]) -> float:
        return max(pipelined_s(size, depth_of(size), stages) / best_s[size] for size in sizes)

    assert worst(lambda size: adaptive_depth(size, threshold)) < 1.2
    assert worst(lambda size: 1) > 2.3
    assert worst(lambda size: 8) > 3.2


# ---- packing


def batches_of(*rows: tuple[int, float, float]) -> list[Batch]:
    """(bytes, generated_s, read_s)."""
    return [Batch((i,), size, at, read) for i, (size, at, read) in enumerate(rows)]


def test_the_four_places_by_hand() -> None:
    # Backward [0, 10], forward [0, 6]. 0 (6 s) is the largest: [2, 8]. 1 (5 s) does not fit after it, but before it
    # is read at 6: [1, 6] of forward. 2 (4 s) fits in neither: after backward it takes 2 s of what is left at [8, 10]
    # and the gap grows by 2, before forward it could use 1 s and the gap would grow by 3. 3 (3 s) is read at 1:
    # after backward it would cost 3, before forward 2. 4 (2 s) fits at the start, [0, 2].
    rows = batches_of((6, 2.0, 6.0), (5, 8.0, 6.0), (4, 8.0, 1.0), (3, 8.0, 1.0), (2, 0.0, 0.0))
    packed = pack(rows, 10.0, 6.0, UNIT)
    assert packed.gap_s == 4.0
    assert packed.slots == (
        PackedSlot(4, Place.BACKWARD, 0.0, 2.0),
        PackedSlot(0, Place.BACKWARD, 2.0, 8.0),
        PackedSlot(2, Place.AFTER_BACKWARD, 8.0, 12.0),
        PackedSlot(3, Place.BEFORE_FORWARD, 12.0, 15.0),
        PackedSlot(1, Place.FORWARD, 15.0, 20.0),
    )
    assert packed.iteration_s == 20.0


def test_without_forward_the_rest_goes_after_backward() -> None:
    rows = batches_of((6, 2.0, 6.0), (5, 8.0, 6.0))
    packed = pack(rows, 10.0, 6.0, UNIT, forward=False)
    assert packed.slots == (PackedSlot(0, Place.BACKWARD, 2.0, 8.0), PackedSlot(1, Place.AFTER_BACKWARD, 8.0, 13.0))
    assert packed.gap_s == 3.0
    assert pack(rows, 10.0, 6.0, UNIT).gap_s == 0.0
    assert pack(batches_of((1, 0.0, 0.0), (1, 1.0, 0.0)), 1.0, 0.0, UNIT).iteration_s == 2.0, "no forward pass at all"


def test_backward_is_filled_from_its_start_and_forward_from_its_end() -> None:
    packed = pack(batches_of((3, 0.0, 0.0), (2, 0.0, 0.0), (2, 4.5, 4.0), (1, 4.5, 3.0)), 5.0, 4.0, UNIT)
    assert packed.slots == (
        PackedSlot(0, Place.BACKWARD, 0.0, 3.0),
        PackedSlot(1, Place.BACKWARD, 3.0, 5.0),
        PackedSlot(3, Place.FORWARD, 6.0, 7.0),
        PackedSlot(2, Place.FORWARD, 7.0, 9.0),
    )


def least_gap(rows: Sequence[Batch], backward_s: float, network: Network) -> float:
    """Return how far the forward pass must move for all transfers to be in time, over every order without cutting."""
    best = float("inf")
    for order in itertools.permutations(rows):
        now = gap = 0.0
        for one in order:
            now = max(now, one.generated_s) + network.transfer_s(one.size_bytes)
            gap = max(gap, now - backward_s - one.read_s)
        best = min(best, gap)
    return best


PACKED = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 10), st.integers(0, 8)), min_size=1, max_size=5)


@given(PACKED, st.sampled_from([0.0, 0.5]), st.booleans())
def test_slots_lie_in_their_windows_and_no_order_needs_a_longer_gap(
    rows: list[tuple[int, int, int]], overhead_s: float, forward: bool
) -> None:
    backward_s, forward_s, network = 10.0, 8.0, Network(2.0, overhead_s)
    given_batches = batches_of(*((size, float(at), float(read)) for size, at, read in rows))
    packed = pack(given_batches, backward_s, forward_s, network, forward)
    assert sorted(slot.batch for slot in packed.slots) == list(range(len(rows)))
    began = backward_s + packed.gap_s
    for slot in packed.slots:
        one = given_batches[slot.batch]
        assert slot.end_s - slot.start_s == pytest.approx(network.transfer_s(one.size_bytes))
        assert slot.start_s >= one.generated_s - 1e-9
        assert slot.end_s <= began + one.read_s + 1e-9
        if slot.place is Place.BACKWARD:
            assert slot.end_s <= backward_s + 1e-9
        elif slot.place is Place.FORWARD:
            assert slot.start_s >= began - 1e-9
        else:
            assert packed.gap_s > 0
            assert slot.start_s < began and slot.end_s > backward_s, "it uses the gap"
        assert forward or slot.end_s <= began + 1e-9
    for before, after in itertools.pairwise(packed.slots):
        assert before.end_s <= after.start_s + 1e-9, "one transfer has the network at a time"
    assert packed.gap_s >= least_gap(given_batches, backward_s, network) - 1e-9
    busy_s = sum(slot.end_s - slot.start_s for slot in packed.slots)
    assert packed.iteration_s >= max(backward_s + forward_s, busy_s) - 1e-9
