"""Rounds in two phases around a ring: what each rank has at the end, and which norms."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
import torch

from prophet_ddp.ring import RingPhases
from prophet_scheduler.core.cut import UNIT_BYTES, Cut, blocks_of
from support.collectives import PhasesRank, Wire


class Rank(PhasesRank):
    """One rank in two phases around a ring."""

    def __init__(
        self,
        wire: Wire,
        rank: int,
        sizes: Sequence[int],
        order: Sequence[int],
        gathers: Sequence[int],
        norm_order: float,
    ) -> None:
        super().__init__(wire, rank, sizes, Cut.uniform(UNIT_BYTES))
        self.issuer.at_once = wire.ranks
        self.phases = RingPhases(
            self.issuer, self.slots, self.blocks, self.pieces, order, gathers, wire.ranks, rank, wire.ranks
        )
        self.issuer.append(self.phases.operations(norm_order))

    def norms(self, order: float = 2.0) -> torch.Tensor:
        norms = self.phases.norms.of(self.slots, order, lambda operation: None)
        assert norms is not None
        return norms


def members_of(wire: Wire, sizes: Sequence[int], chance: random.Random, norm_order: float = 2.0) -> list[Rank]:
    count = len(blocks_of(sizes, [0] * len(sizes), Cut.uniform(UNIT_BYTES)))
    order, gathers = (chance.sample(range(count), count) for _ in range(2))
    return [Rank(wire, rank, sizes, order, gathers, norm_order) for rank in range(wire.ranks)]


@pytest.mark.parametrize("ranks", [3, 4, 7])
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("norm_order", [2.0, 1.3, float("inf")])
def test_all_get_one_sum_and_one_norm_of_each(ranks: int, seed: int, norm_order: float) -> None:
    chance = random.Random(seed)
    # A gradient of one element leaves most ranks without a part of its block.
    sizes = [4 * chance.choice((0, 1, 10, 700, 1500, 5000)) for _ in range(chance.choice((1, 2, 9)))]
    wire = Wire(ranks, lambda rank, number: chance.choice([0.0, chance.random()]))
    members = members_of(wire, sizes, chance, norm_order)
    for member in members:
        for block in member.blocks:
            wire.at(10 * chance.random(), functools.partial(member.issuer.ready, member.phases.reduces[block]))
    wire.run()
    sums = [torch.cat([slot.view for slot in member.slots]) for member in members]
    torch.testing.assert_close(sums[0].double(), sum(member.sent.double() for member in members), rtol=1e-6, atol=0)
    norms = [member.norms(norm_order) for member in members]
    for member, total, told in zip(members, sums, norms, strict=True):
        assert all(operation.done for operation in member.phases.gatherings.values())
        assert torch.equal(total, sums[0]) and torch.equal(told, norms[0]), "ranks differ"
        assert told.dtype == torch.float32
        for slot, norm in zip(member.slots, told, strict=True):
            own = torch.linalg.vector_norm(slot.view, norm_order) if len(slot.view) else norm * 0
            torch.testing.assert_close(norm, own, rtol=1e-5, atol=0)
    assert not any(wire.in_flight)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
def test_what_is_not_finite_is_known_from_its_norm(wrong: float) -> None:
    wire = Wire(3, lambda rank, number: 0.0)
    members = members_of(wire, [4000, 8000], random.Random(0))
    members[1].slots[1].view[7] = wrong
    for member in members:
        for block in member.blocks:
            member.issuer.ready(member.phases.reduces[block])
    wire.run()
    for member in members:
        finite, other = member.norms()
        assert finite.isfinite() and torch.equal(other, torch.tensor(wrong).norm()) | bool(other.isnan())


def test_norms_that_some_rank_has_not_are_not_told() -> None:
    wire = Wire(3, lambda rank, number: 0.0)
    members = [Rank(wire, rank, [400], [0], [0], 1.0 if rank == 2 else 2.0) for rank in range(3)]
    for member in members:
        member.issuer.ready(member.phases.reduces[member.blocks[0]])
    wire.run()
    for member in members:
        assert all(member.phases.norms.of(member.slots, order, lambda operation: None) is None for order in (1.0, 2.0))


def test_blocks_that_are_still_generated_hold_up_no_more_than_one_step() -> None:
    wire, there = Wire(4, lambda rank, number: 1.0), 8
    members = [Rank(wire, rank, [16 * UNIT_BYTES], range(16), range(16), 2.0) for rank in range(4)]
    for member in members:
        for block in member.blocks[:there]:
            member.issuer.ready(member.phases.reduces[block])
    wire.run()
    assert [len(rows) for rows in wire.submitted()] == [3 * there - 1] * 4
    assert wire.most_in_flight >= 2
