"""Rounds in two phases around a ring: what each rank has at the end, and which norms."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence

import pytest
import torch

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer
from prophet_ddp.ring import RingPhases
from prophet_scheduler.core.cut import UNIT_BYTES, Cut, blocks_of
from prophet_scheduler.frontends.torch.arena import ArenaBlock, Slot
from support.collectives import Wire


class Rank:
    """One rank's gradients in blocks, each with its place in one memory, in two phases."""

    def __init__(
        self, wire: Wire, rank: int, sizes: Sequence[int], order: Sequence[int], gathers: Sequence[int]
    ) -> None:
        numbers = torch.Generator().manual_seed(rank)
        memory = torch.rand(sum(sizes) // 4, generator=numbers)
        self.sent = memory.clone()
        self.slots = []
        for place, part in enumerate(memory.split([size // 4 for size in sizes])):
            slot = Slot(None, f"p{place}", torch.zeros(len(part)), place)
            slot.view = part
            self.slots.append(slot)
        pieces, self.blocks, at = blocks_of(sizes, [0] * len(sizes), Cut.uniform(UNIT_BYTES)), [], 0
        for block in pieces:
            slots = tuple(self.slots[piece.gradient] for piece in block.pieces)
            self.blocks.append(ArenaBlock(memory[at : at + block.size_bytes // 4], slots))
            at += block.size_bytes // 4
        self.issuer = Issuer(wire.group(rank), EventLog(open=True))
        self.issuer.at_once = wire.ranks
        self.phases = RingPhases(
            self.issuer, self.slots, self.blocks, pieces, order, gathers, wire.ranks, rank, wire.ranks
        )
        self.issuer.append(self.phases.operations())

    def norms(self) -> torch.Tensor:
        return self.phases.norms(self.slots, lambda operation: None)


def members_of(wire: Wire, sizes: Sequence[int], chance: random.Random) -> list[Rank]:
    count = len(blocks_of(sizes, [0] * len(sizes), Cut.uniform(UNIT_BYTES)))
    orders = [chance.sample(range(count), count) for _ in range(2)]
    return [Rank(wire, rank, sizes, *orders) for rank in range(wire.ranks)]


@pytest.mark.parametrize("ranks", [3, 4, 7])
@pytest.mark.parametrize("seed", range(6))
def test_all_get_one_sum_and_one_norm_of_each(ranks: int, seed: int) -> None:
    chance = random.Random(seed)
    # A gradient of one element leaves most ranks without a part of its block.
    sizes = [4 * chance.choice((1, 10, 700, 1500, 5000)) for _ in range(chance.choice((1, 2, 9)))]
    wire = Wire(ranks, lambda rank, number: chance.choice([0.0, chance.random()]))
    members = members_of(wire, sizes, chance)
    for member in members:
        for block in member.blocks:
            wire.at(10 * chance.random(), functools.partial(member.issuer.ready, member.phases.reduces[block]))
    wire.run()
    sums = [torch.cat([slot.view for slot in member.slots]) for member in members]
    torch.testing.assert_close(sums[0].double(), sum(member.sent.double() for member in members), rtol=1e-6, atol=0)
    norms = [member.norms() for member in members]
    for member, total, told in zip(members, sums, norms, strict=True):
        assert all(operation.done for operation in member.phases.gatherings.values())
        assert torch.equal(total, sums[0]) and torch.equal(told, norms[0]), "ranks differ"
        assert told.dtype == torch.float32
        torch.testing.assert_close(told, torch.stack([slot.view.norm() for slot in member.slots]), rtol=1e-6, atol=0)
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


def test_only_the_norms_are_waited_for() -> None:
    wire = Wire(3, lambda rank, number: 0.0)
    members = members_of(wire, [40_000], random.Random(0))
    waited = []
    for member in members:
        for block in member.blocks:
            member.issuer.ready(member.phases.reduces[block])
        member.phases.norms(member.slots, waited.append)
    assert [operation.size_bytes for operation in waited] == [0, 0, 0]
    assert not any(operation in member.phases.gatherings.values() for operation in waited for member in members)


def test_each_step_follows_soon_and_many_blocks_are_on_their_way() -> None:
    """Blocks that are not generated yet hold up no more than one step of one block."""
    wire = Wire(4, lambda rank, number: 1.0)
    members = members_of(wire, [16 * UNIT_BYTES], random.Random(0))
    there = {rank: [member.blocks[place] for place in member.phases._order[:8]] for rank, member in enumerate(members)}
    for rank, member in enumerate(members):
        for block in there[rank]:
            member.issuer.ready(member.phases.reduces[block])
    wire.run()
    for member in members:
        assert len(wire.submitted()[0]) == 8 * 3 - 1
        assert not member.phases._known.done
    assert wire.most_in_flight >= 2
