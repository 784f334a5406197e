"""Rounds in two phases: who owns which gradient, in which order blocks travel, and what comes of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prophet_ddp.control import Decision
from prophet_ddp.dividing import EVENLY, WHOLE, Division, divide
from prophet_ddp.phases import Phases
from prophet_ddp.sequencing import PhaseWire, orders_of, two_phases_s
from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.cut import UNIT_BYTES, Block, Cut, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.models import zoo
from support.collectives import PhasesRank, Wire
from support.virtual_ddp import Clipping

CUT = Cut.uniform(UNIT_BYTES)
SIZES = st.lists(st.integers(1, 60_000).map(lambda count: 4 * count), min_size=1, max_size=40)


@given(SIZES, st.integers(1, 40))
def test_each_block_has_one_owner_and_both_own_about_as_much(sizes: list[int], units: int) -> None:
    size_bytes = units * UNIT_BYTES
    division = divide(Cut.uniform(size_bytes), sizes, 2)
    blocks = blocks_of(sizes, [0] * len(sizes), division.cut)
    for block in blocks:
        assert len({division.owners[piece.gradient] for piece in block.pieces}) == 1
    loads = [sum(itertools.compress(sizes, (owner == rank for owner in division.owners))) for rank in range(2)]
    assert abs(loads[0] - loads[1]) <= size_bytes + max(sizes), "the next one goes to who has the least"
    assert max(block.size_bytes for block in blocks) <= 2 * size_bytes + 2 * UNIT_BYTES
    whole = [size for size, owner in zip(sizes, division.owners, strict=True) if owner == WHOLE]
    assert sum(whole) >= max(sizes), "the largest group has no owner"


def wire_of(blocks: Sequence[Block], owners: tuple[int, ...], ranks: int = 2) -> PhaseWire:
    """Return a wire on which an operation costs 1 second, and 8 more for half a block of 16 units."""
    return PhaseWire(Division(CUT, owners), blocks, Network(UNIT_BYTES, 1.0), ranks)


def test_what_waits_for_its_link_lets_others_pass() -> None:
    sizes = [64 * UNIT_BYTES] * 4
    blocks = blocks_of(sizes, [0] * 4, Cut.uniform(16 * UNIT_BYTES))
    owners = (0, 0, 1, 1)
    at_once = orders_of(wire_of(blocks, owners), [0.0] * 16, range(16), 1)
    for order in at_once:
        assert sorted(order) == list(range(16))
        ways = [owners[blocks[place].pieces[0].gradient] for place in order]
        assert all({0, 1} == set(pair) for pair in itertools.pairwise(ways[1:-1])), "both links are in use all the time"
    assert [place for place in at_once[1] if place < 8] == list(range(8)), "those of one owner as they are needed"


def test_nothing_waits_in_the_order_for_what_is_generated_later() -> None:
    sizes = [16 * UNIT_BYTES] * 8
    blocks = blocks_of(sizes, [0] * 8, Cut.uniform(16 * UNIT_BYTES))
    ready_s = [1000.0 * (8 - place) for place in range(8)]
    order, _ = orders_of(wire_of(blocks, (0,) * 8), ready_s, range(8), 4)
    assert order == tuple(reversed(range(8)))


def test_owners_have_links_of_their_own_and_an_all_reduce_takes_both() -> None:
    blocks = blocks_of([16 * UNIT_BYTES] * 3, [0] * 3, Cut.uniform(16 * UNIT_BYTES))
    wire = wire_of(blocks, (0, 1, WHOLE))
    assert wire.reduces_s == [18.0, 18.0, 17.0] and wire.gathers_s == [18.0, 18.0, 0.0]
    assert wire.send([0, 1, 2], wire.reduces_s, [0.0, 1.0, 2.0]) == ([0.0, 1.0, 19.0], [18.0, 19.0, 36.0])
    even = wire_of(blocks, (EVENLY,) * 3, ranks=4)
    assert even.reduces_s == [11.0] * 3 and even.gathers_s == [9.0] * 3, "three operations, and then one"
    assert even.send([2, 1, 0], even.reduces_s, [0.0] * 3)[1] == [33.0, 22.0, 11.0]


def test_a_large_gradient_without_an_owner_is_not_sent_twice_over_one_link() -> None:
    model = zoo.profile("bert-base", total_bytes=25_600_000, backward_s=0.6, forward_s=0.3)
    job: Any = Clipping(profile=model)
    profile, network = profile_under(model, CUT), Network(30e6, 0.0)
    cut = Cut.uniform(256 << 10)
    predicted_s = two_phases_s(job, cut, profile, network)
    assert job.division(cut).owners[0] == WHOLE
    divided = divide(cut, job.sizes, 2)
    job.division = lambda _cut: replace(divided, owners=(1, *divided.owners[1:]))
    embedding_s = model.gradients[0].size_bytes / network.bandwidth
    assert two_phases_s(job, cut, profile, network) >= predicted_s + 0.4 * embedding_s


class Rank(PhasesRank):
    """One rank in two phases: one of two that own whole gradients, or one of a ring."""

    def __init__(
        self,
        wire: Wire,
        rank: int,
        sizes: Sequence[int],
        order: Sequence[int],
        gathers: Sequence[int],
        norm_order: float = 2.0,
    ) -> None:
        division = divide(CUT, sizes, wire.ranks)
        super().__init__(wire, rank, sizes, division.cut)
        self.issuer.groups.apart = [wire.group(rank, 1 + number) for number in range(wire.ranks)]
        self.issuer.at_once = 3
        decision = Decision(division.cut, tuple(order), at_once=wire.ranks, gathers=tuple(gathers))
        ranks = rank, wire.ranks
        self.phases = Phases(self.issuer, self.slots, self.blocks, self.pieces, division, decision, *ranks)
        self.issuer.append(self.phases.operations(norm_order))

    def norms(self, order: float = 2.0) -> torch.Tensor | None:
        return self.phases.norms.of(self.slots, order, lambda operation: None)


def ranks_of(wire: Wire, sizes: Sequence[int], chance: random.Random, norm_order: float = 2.0) -> list[Rank]:
    count = len(blocks_of(sizes, [0] * len(sizes), divide(CUT, sizes, wire.ranks).cut))
    order, gathers = (chance.sample(range(count), count) for _ in range(2))
    return [Rank(wire, rank, sizes, order, gathers, norm_order) for rank in range(wire.ranks)]


def all_ready(members: Sequence[Rank], most: int | None = None) -> None:
    """Make each member's first blocks ready, at most so many."""
    for member in members:
        for block in member.blocks[:most]:
            member.issuer.ready(member.phases.reduces[block])


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("norm_order", [2.0, 1.3, float("inf")])
def test_all_get_one_sum_and_one_norm_of_each(ranks: int, seed: int, norm_order: float) -> None:
    chance = random.Random(seed)
    # A gradient of one element leaves most ranks without a part of its block.
    sizes = [4 * chance.choice((0, 1, 10, 700, 1500, 5000)) for _ in range(chance.choice((1, 2, 9)))]
    wire = Wire(ranks, lambda rank, number: chance.choice([0.0, chance.random()]))
    members = ranks_of(wire, sizes, chance, norm_order)
    for member in members:
        for block in member.blocks:
            wire.at(10 * chance.random(), functools.partial(member.issuer.ready, member.phases.reduces[block]))
    wire.run()
    sums = [torch.cat([slot.view for slot in member.slots]) for member in members]
    expected = sum(member.sent.double() for member in members)
    assert isinstance(expected, torch.Tensor)
    torch.testing.assert_close(sums[0], expected.float(), rtol=0.0 if ranks == 2 else 1e-6, atol=0.0)
    first = members[0].norms(norm_order)
    assert first is not None and first.dtype == torch.float32
    for member, total in zip(members, sums, strict=True):
        assert all(operation.done for operation in member.phases.gatherings.values())
        norms = member.norms(norm_order)
        assert norms is not None and torch.equal(total, sums[0]) and torch.equal(norms, first), "ranks differ"
        for slot, norm in zip(member.slots, norms, strict=True):
            own = torch.linalg.vector_norm(slot.view, norm_order) if len(slot.view) else norm * 0
            torch.testing.assert_close(norm, own, rtol=0.0 if ranks == 2 else 1e-5, atol=0.0)
    assert not any(wire.in_flight)


def test_what_the_program_has_dropped_is_summed() -> None:
    wire = Wire(2, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0]) for rank in range(2)]
    all_ready(members)
    for member in members:
        for slot in member.slots:
            slot.let_memory_go()
    wire.run()
    for member in members:
        assert torch.equal(member.blocks[0].data, members[0].sent + members[1].sent)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("other", [1.0, float("inf")])
def test_norms_of_an_order_that_some_rank_has_not_are_not_told(ranks: int, other: float) -> None:
    wire = Wire(ranks, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0], other if rank else 2.0) for rank in range(ranks)]
    all_ready(members)
    wire.run()
    for member in members:
        assert member.norms(2.0) is None and member.norms(other) is None


def test_norms_of_another_number_of_threads_are_not_told() -> None:
    wire = Wire(2, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0]) for rank in range(2)]
    all_ready(members)
    wire.run()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert members[0].norms() is None
    finally:
        torch.set_num_threads(threads)
    assert members[0].norms() is not None


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_what_is_not_finite_is_known_from_its_norm(wrong: float) -> None:
    wire = Wire(3, lambda rank, number: 0.0)
    members = ranks_of(wire, [4000, 8000], random.Random(0))
    members[1].slots[1].view[7] = wrong
    all_ready(members)
    wire.run()
    for member in members:
        norms = member.norms()
        assert norms is not None
        finite, other = norms
        assert finite.isfinite() and torch.equal(other, torch.tensor(wrong).norm()) | bool(other.isnan())


def test_blocks_that_are_still_generated_hold_up_no_more_than_one_step() -> None:
    wire, there = Wire(4, lambda rank, number: 1.0), 8
    members = [Rank(wire, rank, [16 * UNIT_BYTES], range(16), range(16)) for rank in range(4)]
    all_ready(members, there)
    wire.run()
    assert [len(rows) for rows in wire.submitted()] == [3 * there - 1] * 4
    assert wire.most_in_flight >= 2
