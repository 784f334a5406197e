"""Decisions for one module's wanted blocks: the sequence in which they are issued, and when another one is better. Also
predicted times of the ways of averaging besides the usual one.

Rule of this file: pure. It takes estimates and a cut, and makes the decisions that control.py carries to all ranks. The
tuner (prophet_scheduler/session/tuner.py) chooses the next way. Times are seconds, sizes bytes.

Usually blocks are all-reduced. In a job that clips by the total norm they may go in two phases (phases.py). torch's own
reducer, with its own buckets or small ones, may be the fastest if iterations are short or nothing waits for the wire.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prophet_ddp.control import SMALL_CUT, TORCH, TORCH_CUT, TWO_PHASES, Decision, bucket_bytes_of
from prophet_ddp.dividing import EVENLY, MOST_EXACT, WHOLE, Division
from prophet_scheduler.core.arena import completions_at, generations_at
from prophet_scheduler.core.choice import Choice, Question
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Block, Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.learn.ranks import ranks_under
from prophet_scheduler.policies.algorithms.collective import LEAST_OVERHEAD_S, LEAST_SIZE, SIZES
from prophet_scheduler.policies.algorithms.sequence import (
    LEAST_AT_ONCE,
    MOST_AT_ONCE,
    IssueOrder,
    iteration_s,
    make_sequence,
    operations_at_once,
    play_sequence,
)
from prophet_scheduler.policies.algorithms.stock import stock_iteration_s

if TYPE_CHECKING:
    from prophet_ddp.layout import ModuleLayout
    from prophet_scheduler.learn.serial import SerialMonitor
    from prophet_scheduler.policies.algorithms.collective import CollectivePolicy
    from prophet_scheduler.session.messages import Basis

BETTER = 0.005
"""Minimum predicted saving that another sequence must bring, as a share of the iteration."""
AT_ONCE = 4
"""Maximum number of operations in flight for each owner, in two phases."""


class Sequencer:
    """Maker of one module's decisions. `operations` has their pace. It checks sequences every `monitor_s` seconds."""

    def __init__(self, policy: CollectivePolicy, operations: SerialMonitor, monitor_s: float) -> None:
        self._policy = policy
        self._operations = operations
        self._monitor_s = monitor_s
        self.judged_at = -float("inf")
        """Time at which the last decision was made or checked; the owner sets it."""
        self._looked_at: Cut | None = None
        """Cut whose sequence has been checked since it came into force."""
        self._ranks: tuple[Cut | None, Mapping[int, int]] = None, {}

    def is_due(self, cut: Cut, now: float, at_rest: bool) -> bool:
        """Return True if the sequence of the cut in force should be checked again: once when the pace of its blocks is
        known, and every `monitor_s` seconds after that. Do not ask while another arm is wanted: ranks would take up the
        new sequence instead.

        False before the last sequence is measured: a cut whose sequence changed every few iterations would never be
        measured, and never be left.
        """
        later = now - self.judged_at >= self._monitor_s
        if cut == self._looked_at:
            return later and at_rest
        return later or self._pace_s(cut) is not None

    def decide(self, layout: ModuleLayout, cut: Cut, divides: bool, basis: Basis) -> Decision:
        """Return the decision for blocks of this cut, on a network as fast as they were lately; in two phases if it
        `divides`.
        """
        if divides:
            return self._divided(layout, cut, basis)
        return self._sequence(layout, cut, self._as_paced(cut, basis)).decision(basis.network)

    def better(self, layout: ModuleLayout, held: Decision, basis: Basis) -> Decision | None:
        """Return another sequence of the same blocks if it is better now, or if the delay has changed; else None."""
        self._looked_at = held.cut
        if held.gathers:
            return None  # In two phases both orders depend more on owners than on times.
        paced = self._as_paced(held.cut, basis)
        other = self._sequence(layout, held.cut, paced)
        present = other.as_issued(held.order, paced.network)
        present_s, other_s = (each.iteration_s(basis.barrier) for each in (present, other))
        if other_s < present_s * (1 - BETTER):
            return other.decision(basis.network)
        wanted = present.decision(basis.network)
        return wanted if abs(wanted.at_once - held.at_once) > 1 else None

    def _divided(self, layout: ModuleLayout, cut: Cut, basis: Basis) -> Decision:
        division, ranks = layout.division(cut), layout.ranks
        sequence = self._blocks(layout, division.cut, basis.profile)
        rows = zip(sequence.profile.gradient_ids, sequence.profile.gradients, strict=True)
        generated_s = {id_: gradient.generation_s for id_, gradient in rows}
        wire = PhaseWire(division, layout.blocks_under(division.cut), basis.network, ranks)
        ready_s = [generated_s[id_] for id_ in sequence.ids]
        order, gathers = orders_of(wire, ready_s, sequence.as_needed, AT_ONCE)
        if ranks <= MOST_EXACT:
            return Decision(cut, order, at_once=AT_ONCE * ranks, gathers=gathers)
        # A step is to its part what an all-reduce is to its block.
        size_bytes = sequence.profile.total_bytes / len(sequence.ids)
        at_once = max(ranks - 1, operations_at_once(basis.network, size_bytes, MOST_AT_ONCE))
        return Decision(cut, order, at_once=at_once, gathers=gathers)

    def _pace_s(self, cut: Cut) -> float | None:
        """Return the seconds from one block to the next; None if sizes vary or too few blocks were sent lately."""
        return self._operations.pace_s(cut.block_bytes_at(0)) if len(cut.segments) == 1 else None

    def _as_paced(self, cut: Cut, basis: Basis) -> Basis:
        """Return the basis with a bandwidth that matches the recent pace of this cut's blocks."""
        network, pace_s, size_bytes = basis.network, self._pace_s(cut), cut.block_bytes_at(0)
        if pace_s is None or pace_s <= network.overhead_s:
            return basis
        return replace(basis, network=replace(network, bandwidth=size_bytes / (pace_s - network.overhead_s)))

    def _sequence(self, layout: ModuleLayout, cut: Cut, basis: Basis) -> BlockSequence:
        sequence = self._blocks(layout, cut, basis.profile)
        plan = self._policy.ordered(sequence.profile, basis.network, basis.jitter_s, barrier=basis.barrier)
        return replace(sequence, issued=make_sequence(sequence.profile, basis.network, plan))

    def _blocks(self, layout: ModuleLayout, cut: Cut, profile: Profile) -> BlockSequence:
        blocks = layout.blocks_under(cut)
        if self._policy.learns_order:
            before = self._ranks[1] if self._ranks[0] == cut else {}
            self._ranks = cut, ranks_under(blocks, profile, before)
        return BlockSequence(cut, tuple(block.id for block in blocks), profile_of(blocks, profile, self._ranks[1]))


@dataclass(frozen=True)
class BlockSequence:
    """A cut's blocks: `ids` by place, and `profile` in the order in which forward needs them. `issued` is the order of
    issue, by positions in the profile; None before there is one.
    """

    cut: Cut
    ids: tuple[int, ...]
    profile: Profile
    issued: IssueOrder | None = None

    def as_issued(self, order: Sequence[int], network: Network) -> BlockSequence:
        """Return the same blocks, issued in this `order` of their places in the arena."""
        ranks = self.profile.rank_by_id
        return replace(self, issued=play_sequence(self.profile, network, [ranks[self.ids[place]] for place in order]))

    def iteration_s(self, barrier: bool) -> float:
        """Return the predicted time of an iteration."""
        assert self.issued is not None
        return iteration_s(self.profile, self.issued, barrier)

    @property
    def as_needed(self) -> tuple[int, ...]:
        """Places of the blocks in the order in which forward needs them."""
        places = {id_: place for place, id_ in enumerate(self.ids)}
        return tuple(places[id_] for id_ in self.profile.gradient_ids)

    def decision(self, network: Network) -> Decision:
        """Return a decision with enough operations in flight to keep the wire busy."""
        assert self.issued is not None
        needed = self.as_needed
        order = tuple(needed[rank] for rank in self.issued.order)
        size_bytes = self.profile.total_bytes / len(self.ids)
        return Decision(self.cut, order, at_once=operations_at_once(network, size_bytes, MOST_AT_ONCE))


def profile_of(blocks: Sequence[Block], profile: Profile, ranks: Mapping[int, int] | None = None) -> Profile:
    """Return a profile of these blocks from one of other blocks of the same arena. They are in the order of `ranks`, by
    id, or without ranks in the order of their places.

    A block is generated when its first place is; if places are not in forward order, when all of it is. Forward times
    are in proportion to bytes.
    """
    ids = [block.id for block in blocks]
    if not ranks:
        generations = generations_at(profile, ids)
    else:
        completed = dict(zip(ids, completions_at(profile, ids), strict=True))
        blocks = sorted(blocks, key=lambda block: ranks[block.id])
        times = [completed[block.id] for block in blocks]
        # Ranks were learned once: noise must not make a less urgent block appear later.
        generations = list(itertools.accumulate(reversed(times), max))[::-1]
    forward_s = profile.forward_s / profile.total_bytes
    rows = [
        GradientProfile(f"block{block.id}", block.size_bytes, generation_s, forward_s * block.size_bytes)
        for block, generation_s in zip(blocks, generations, strict=True)
    ]
    return Profile(profile.name, tuple(rows), tuple(block.id for block in blocks))


def torch_reducer(question: Question) -> Iterator[Choice]:
    """Yield choices with torch's own reducer, whose blocks are buckets."""
    profile, network, ranks = question.profile, question.network, question.shape.workers
    for cut in (TORCH_CUT, SMALL_CUT):
        predicted_s = stock_iteration_s(profile, network, ranks, bucket_bytes_of(cut) or None)
        yield Choice(cut, MOST_BLOCK_BYTES, predicted_s, TORCH, warms_up=True)


class PhaseWire:
    """Prediction of both phases of `blocks`, by place, on this network of `ranks` ranks.

    What goes to or from one owner uses one way, and blocks take turns on each. What has no single owner uses all ways,
    and is reduced in a ring of operations.
    """

    def __init__(self, division: Division, blocks: Sequence[Block], network: Network, ranks: int) -> None:
        self._ways: list[Sequence[int]] = []
        self.reduces_s: list[float] = []
        """Seconds that each block occupies its ways in the first phase."""
        self.gathers_s: list[float] = []
        """Seconds that each block occupies its ways in the second phase."""
        network = replace(network, overhead_s=max(network.overhead_s, LEAST_OVERHEAD_S))
        for block in blocks:
            owner = division.owner(block)
            half_s = network.transfer_s(block.size_bytes / 2) * (ranks if owner >= 0 else 1)
            more_s = (ranks - 2) * network.overhead_s if owner == EVENLY else 0.0
            self._ways.append(range(ranks) if owner < 0 else (owner,))
            self.reduces_s.append(network.transfer_s(block.size_bytes) if owner == WHOLE else half_s + more_s)
            self.gathers_s.append(0.0 if owner == WHOLE else half_s)

    def send(
        self, order: Sequence[int], takes_s: Sequence[float], ready_s: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when each block begins and ends, by place, if blocks that are ready at `ready_s` go in this order."""
        begins_s, ends_s = [0.0] * len(order), [0.0] * len(order)
        free_s: dict[int, float] = {}
        for place in order:
            ways = self._ways[place]
            begins_s[place] = max(ready_s[place], *(free_s.get(way, 0.0) for way in ways))
            ends_s[place] = begins_s[place] + takes_s[place]
            free_s |= dict.fromkeys(ways, ends_s[place])
        return begins_s, ends_s


def by_generation(ready_s: Sequence[float]) -> list[int]:
    """Return the places of blocks in the order in which backward generates them; of several at once, the last first."""
    return sorted(range(len(ready_s)), key=lambda place: (ready_s[place], -place))


def orders_of(
    wire: PhaseWire, ready_s: Sequence[float], needed: Sequence[int], at_once: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the places of the wire's blocks in the order of reduction, and in the order of gathering.

    `ready_s`, by place, is when each block is generated. `needed` has the places as forward needs the blocks. `at_once`
    operations are in flight for each owner. An owner's blocks share its link, and other links would idle if everything
    in flight used the same one. So a block that would wait long for its link lets others pass.
    """

    def ordered(wanted: Sequence[int], takes_s: Sequence[float], ready_s: Sequence[float]) -> tuple[int, ...]:
        lead_s = at_once / 2 * sum(takes_s) / len(takes_s)
        begins_s, _ = wire.send(wanted, takes_s, ready_s)
        return tuple(sorted(wanted, key=lambda place: max(ready_s[place], begins_s[place] - lead_s)))

    return (
        ordered(by_generation(ready_s), wire.reduces_s, ready_s),
        ordered(needed, wire.gathers_s, [0.0] * len(ready_s)),
    )


def two_phases_s(layout: ModuleLayout, cut: Cut, profile: Profile, network: Network) -> float:
    """Return the predicted time of an iteration in two phases.

    The program waits for the first phase and an exchange of norms. Then each layer waits for its own blocks. Operations
    in flight share the wire, so a block arrives together with the next ones.
    """
    division = layout.division(cut)
    blocks = layout.blocks_under(division.cut)
    wire = PhaseWire(division, blocks, network, layout.ranks)
    rows = profile_of(blocks, profile).gradients
    ready_s = [row.generation_s for row in rows]
    _, ends_s = wire.send(by_generation(ready_s), wire.reduces_s, ready_s)
    delay_s = network.ack_delay_s / 2  # Each phase has half of an all-reduce's messages.
    now = max(profile.backward_s, *ends_s) + 2 * delay_s
    _, ends_s = wire.send(range(len(blocks)), wire.gathers_s, [now] * len(blocks))
    for place, row in enumerate(rows):
        arrives_s = max(ends_s[place : place + LEAST_AT_ONCE]) + delay_s
        now = max(now, arrives_s) + row.forward_s
    return now


def two_phases(question: Question, layout: ModuleLayout) -> Iterator[Choice]:
    """Yield choices with two phases, by block size."""
    profile, network = question.profile, question.network
    for size in SIZES:
        if not LEAST_SIZE <= size <= max(profile.total_bytes, LEAST_SIZE):
            continue
        cut = Cut.uniform(size)
        yield Choice(cut, 2 * size, two_phases_s(layout, cut, profile, network), TWO_PHASES)
