"""Rounds in two phases: who owns which gradient, in which order blocks travel, and what comes of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prophet_ddp.phases import TwoPhases, divide, orders_of
from prophet_scheduler.core.cut import UNIT_BYTES, Cut, blocks_of
from support.collectives import PhasesRank, Wire

SIZES = st.lists(st.integers(1, 60_000).map(lambda count: 4 * count), min_size=1, max_size=40)


@given(SIZES, st.integers(1, 40), st.integers(2, 8))
def test_each_block_has_one_owner_and_all_own_about_as_much(sizes: list[int], units: int, ranks: int) -> None:
    size_bytes = units * UNIT_BYTES
    division = divide(Cut.uniform(size_bytes), sizes, ranks)
    blocks = blocks_of(sizes, [0] * len(sizes), division.cut)
    for block in blocks:
        assert len({division.owners[piece.gradient] for piece in block.pieces}) == 1
    loads = [sum(itertools.compress(sizes, (owner == rank for owner in division.owners))) for rank in range(ranks)]
    assert division.imbalance == pytest.approx(max(loads) * ranks / sum(sizes))
    assert max(loads) <= sum(sizes) / ranks + size_bytes + max(sizes), "the next one goes to who has the least"
    assert max(block.size_bytes for block in blocks) <= 2 * size_bytes + 2 * UNIT_BYTES


def test_what_waits_for_its_link_lets_others_pass() -> None:
    sizes = [64 * UNIT_BYTES] * 4
    blocks = blocks_of(sizes, [0] * 4, Cut.uniform(16 * UNIT_BYTES))
    owners = (0, 0, 1, 1)
    at_once = orders_of(blocks, owners, [0.0] * 16, range(16), 16 * UNIT_BYTES, 2, 1)
    for order in at_once:
        assert sorted(order) == list(range(16))
        ways = [owners[blocks[place].pieces[0].gradient] for place in order]
        assert all({0, 1} == set(pair) for pair in itertools.pairwise(ways[1:-1])), "both links are in use all the time"
    assert [place for place in at_once[1] if place < 8] == list(range(8)), "those of one owner as they are needed"


def test_nothing_waits_in_the_order_for_what_is_generated_later() -> None:
    sizes = [16 * UNIT_BYTES] * 8
    blocks = blocks_of(sizes, [0] * 8, Cut.uniform(16 * UNIT_BYTES))
    ready_s = [10.0 * (8 - place) for place in range(8)]
    order, _ = orders_of(blocks, (0,) * 8, ready_s, range(8), 16 * UNIT_BYTES, 2, 4)
    assert order == tuple(reversed(range(8)))


class Rank(PhasesRank):
    """One rank in two phases, in which each gradient has one owner."""

    def __init__(
        self,
        wire: Wire,
        rank: int,
        sizes: Sequence[int],
        order: Sequence[int],
        gathers: Sequence[int],
        norm_order: float = 2.0,
    ) -> None:
        division = divide(Cut.uniform(UNIT_BYTES), sizes, wire.ranks)
        super().__init__(wire, rank, sizes, division.cut)
        self.issuer.groups.apart = [wire.group(rank, 1 + number) for number in range(wire.ranks)]
        self.issuer.at_once = 3
        who = rank, wire.ranks
        self.phases = TwoPhases(self.issuer, self.slots, self.blocks, division.owners, order, gathers, *who)
        self.issuer.append(self.phases.operations(norm_order))


def count_of(sizes: Sequence[int], ranks: int) -> int:
    return len(blocks_of(sizes, [0] * len(sizes), divide(Cut.uniform(UNIT_BYTES), sizes, ranks).cut))


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("norm_order", [2.0, 1.3, float("inf")])
def test_all_get_the_sum_and_every_norm(ranks: int, seed: int, norm_order: float) -> None:
    chance = random.Random(seed)
    sizes = [4 * chance.choice((0, 1, 10, 700, 1500, 5000)) for _ in range(chance.choice((1, 2, 9)))]
    count = count_of(sizes, ranks)
    order, gathers = (chance.sample(range(count), count) for _ in range(2))
    wire = Wire(ranks, lambda rank, number: chance.choice([0.0, chance.random()]))
    members = [Rank(wire, rank, sizes, order, gathers, norm_order) for rank in range(ranks)]
    for member in members:
        for block in member.blocks:
            wire.at(10 * chance.random(), functools.partial(member.issuer.ready, member.phases.reduces[block]))
    wire.run()
    total = members[0].sent.clone()
    for member in members[1:]:
        total += member.sent
    told = [member.phases.norms.of(member.slots, norm_order, lambda operation: None) for member in members]
    for member, norms in zip(members, told, strict=True):
        assert all(operation.done for operation in member.phases.gatherings.values())
        assert torch.equal(torch.cat([slot.view for slot in member.slots]), total), "to the last bit, in order of ranks"
        assert norms is not None
        for slot, norm in zip(member.slots, norms, strict=True):
            assert torch.equal(norm, torch.linalg.vector_norm(slot.view, norm_order) if len(slot.view) else norm * 0)
    assert not any(wire.in_flight)


def test_what_the_program_has_dropped_is_summed() -> None:
    wire = Wire(2, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0]) for rank in range(2)]
    for member in members:
        member.issuer.ready(member.phases.reduces[member.blocks[0]])
        for slot in member.slots:
            slot.let_memory_go()
    wire.run()
    for member in members:
        assert torch.equal(member.blocks[0].data, members[0].sent + members[1].sent)


@pytest.mark.parametrize("other", [1.0, float("inf")])
def test_norms_of_another_order_are_not_told(other: float) -> None:
    wire = Wire(2, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0], (2.0, other)[rank]) for rank in range(2)]
    for member in members:
        member.issuer.ready(member.phases.reduces[member.blocks[0]])
    wire.run()
    for member in members:
        assert member.phases.norms.of(member.slots, 2.0, lambda operation: None) is None
        assert member.phases.norms.of(member.slots, other, lambda operation: None) is None


def test_norms_of_another_number_of_threads_are_not_told() -> None:
    wire = Wire(2, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0]) for rank in range(2)]
    for member in members:
        member.issuer.ready(member.phases.reduces[member.blocks[0]])
    wire.run()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert members[0].phases.norms.of(members[0].slots, 2.0, lambda operation: None) is None
    finally:
        torch.set_num_threads(threads)
    assert members[0].phases.norms.of(members[0].slots, 2.0, lambda operation: None) is not None
