"""Jobs with separate halves of an all-reduce: FSDP2, HSDP, and rounds in two phases.

Rule of this file: conversion of a profile to numbers for the native simulation. No cluster, no policy, and no constant
of a machine. The halves are reduce-scatter, which brings sums to their owners, and all-gather, from owners to all.

The program is one chain of operations. Some wait for a collective of the same iteration, some for one of the previous
iteration. Sizes are bytes, times seconds.

Ranks are numbered host by host, and ranks that shard the same parameters have consecutive numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from prophet_scheduler.core._native import OperationSpec, TensorSpec
from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.core.iteration import Iteration, loads_of
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.simulate.job import Job

AHEAD = 2
"""Number of modules whose parameters Prophet prefetches (prophet_fsdp/order.py)."""
BEHIND = 1.5
"""Factor of the time of gloo's all-gather of two ranks right after another all-gather. The ranks start it at different
times, over one connection: the later rank's request for data waits behind half the data that it sends
(docs/simulator.md).
"""


@dataclass(frozen=True)
class Sharding:
    """Sharding of a model: each of `replicas` is divided among `shards` ranks. `keeps`: parameters stay gathered after
    forward (reshard_after_forward=False). `scheduled`: under Prophet. `waits`: the program reads all gradients before
    it uses any, as for clipping by their norm.

    `together` ranks share a host and its link. A byte that stays on the host costs as much as `within` bytes of the
    link. `message_s` is the time until a message's receiver has asked for it.
    """

    shards: int
    replicas: int = 1
    keeps: bool = False
    scheduled: bool = False
    waits: bool = False
    together: int = 1
    within: float = 0.0
    message_s: float = 0.0


@dataclass
class _Collective:
    """Collective that occupies a host's link for `sent` bytes, and starts `delay_s` late. `then` and `next_` have the
    indices of the operations that wait for it, in the same iteration and in the next.
    """

    sent: float
    gradient: int
    delay_s: float = 0.0
    then: list[int] = field(default_factory=list)
    next_: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Modules:
    """Modules of a sharded model: their seconds in both passes, and their collectives. `gathers` and `again` all-gather
    parameters in forward and in backward, and are empty if not needed. `stages` reduce gradients, one after another.
    """

    forward_s: Sequence[float]
    backward_s: Sequence[float]
    gathers: Sequence[_Collective]
    again: Sequence[_Collective]
    stages: Sequence[Sequence[_Collective]]


class _Chain:
    """Operations that run one after another."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.collectives: list[_Collective] = []
        self._sends: list[list[int]] = []

    def add(
        self,
        seconds: float = 0.0,
        *,
        after: Iterable[_Collective] = (),
        after_last: Iterable[_Collective] = (),
        sends: Sequence[_Collective] = (),
    ) -> None:
        """Append an operation. It waits for `after` and, from the previous iteration, `after_last`. Then it `sends`."""
        place = len(self.seconds)
        for collective in after:
            collective.then.append(place)
        for collective in after_last:
            collective.next_.append(place)
        first = len(self.collectives)
        self.collectives += sends
        self.seconds.append(seconds)
        self._sends.append(list(range(first, len(self.collectives))))

    def job(self, name: str, backward: int) -> Job:
        """Return the job. `backward` is the index of backward's first operation."""
        last = len(self.seconds) - 1
        rows = enumerate(zip(self.seconds, self._sends, strict=True))
        sizes = tuple(max(1, round(collective.sent)) for collective in self.collectives)
        return Job(
            name,
            tuple(
                OperationSpec(seconds, min(place, 1), [place + 1] if place < last else [], sends)
                for place, (seconds, sends) in rows
            ),
            tuple(
                TensorSpec(size, each.next_, needed_now=each.then)
                for size, each in zip(sizes, self.collectives, strict=True)
            ),
            tuple((each.gradient,) for each in self.collectives),
            sizes,
            backward,
        )


def modules_of(profile: Profile) -> tuple[Profile, list[tuple[int, ...]]]:
    """Return the profile of the modules that users shard, and the gradients of each. A module is a layer of a list or
    sequence, such as `encoder.layer.3`, or else a direct child of the model, such as `embeddings`.
    """
    rows = groupby(enumerate(profile.gradients), lambda row: _module_of(row[1].name))
    modules, members = list[GradientProfile](), list[tuple[int, ...]]()
    for name, each in rows:
        places, gradients = zip(*each, strict=True)
        size, forward_s = (
            sum(column) for column in zip(*((g.size_bytes, g.forward_s) for g in gradients), strict=True)
        )
        modules.append(GradientProfile(name, size, max(g.generation_s for g in gradients), forward_s))
        members.append(places)
    return Profile(profile.name, tuple(modules)), members


def _module_of(name: str) -> str:
    path = name.split(".")
    number = next((place for place, part in enumerate(path[:-1]) if part.isdigit()), 0)
    return ".".join(path[: number + 1])


def job_of_shards(profile: Profile, sharding: Sharding) -> tuple[Job, Plan | None]:
    """Return the job of a model with sharded modules, and the plan of its collectives; None for arrival order.

    Each gradient of the profile is that of a separately sharded module. Tensors have the bytes that cross a host's
    link, in both directions at once. Gloo's own reduce-scatter is internally an all-reduce.
    """
    generated_s = [*(gradient.generation_s for gradient in profile.gradients), 0.0]
    backward_s = [max(0.0, now - before) for now, before in itertools.pairwise(generated_s)]
    shards, replicas = sharding.shards, sharding.replicas
    half = _half(sharding, shards, min(shards, sharding.together), 1)
    between = (
        2 * _half(sharding, replicas, max(1, sharding.together // shards), min(shards, sharding.together)) / shards
    )
    inside = half if sharding.scheduled else 2 * half
    # A program that waits for each collective also pays its message delays; otherwise the channel has them.
    message_s = 0.0 if sharding.scheduled else sharding.message_s
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    modules = range(len(sizes))
    gathers, again, sums, averages = (
        [_Collective(share * size, module, rounds * message_s) for module, size in enumerate(sizes)]
        for share, rounds in (
            (half, shards - 1),
            (half, shards - 1),
            (inside, 2 * (shards - 1)),
            (between, 2 * (replicas - 1)),
        )
    )
    if shards == 2 and not sharding.scheduled:
        for gather in (*gathers[1:], again[-1]):
            gather.sent *= BEHIND
    stages = [stage for stage, divided in ((sums, shards > 1), (averages, replicas > 1)) if divided]
    chain = _Chain()
    if sharding.waits:
        chain.add(after_last=stages[-1])
    model = _Modules(
        [gradient.forward_s for gradient in profile.gradients],
        backward_s,
        gathers if shards > 1 else [],
        again if shards > 1 and not sharding.keeps else [],
        stages,
    )
    backward = (_scheduled if sharding.scheduled else _one_by_one)(chain, model)
    job = chain.job(profile.name, backward)
    if not sharding.scheduled:
        return job, None
    urgent = [*gathers, *again, *(stage[module] for module in modules for stage in reversed(stages))]
    ranks = {id(collective): rank for rank, collective in enumerate(urgent)}
    order = {place: ranks[id(collective)] for place, collective in enumerate(chain.collectives)}
    return job, Plan(push=QueuePlan(order=order))


def _half(sharding: Sharding, ranks: int, here: int, groups: int) -> float:
    """Return the bytes that half an all-reduce of one byte, by each group of ranks, puts on a host's link.

    Each host has `here` ranks of each of `groups` groups. Gloo's ring leaves a host once. Under Prophet, each shard
    arrives at a host once (prophet_fsdp/wire.py).
    """
    if ranks == here:
        return sharding.within * sharding.together * (ranks - 1) / ranks
    return groups * (ranks - (here if sharding.scheduled else 1)) / ranks


def _one_by_one(chain: _Chain, model: _Modules) -> int:
    """Build FSDP2's program over gloo, which waits for each collective. Return the index of backward's start."""
    last = [stage[0] for stage in model.stages[-1:]]
    for module, seconds in enumerate(model.forward_s):
        mine = model.gathers[module : module + 1]
        chain.add(_delay_s(mine), after_last=last if not module else (), sends=mine)
        chain.add(seconds, after=mine)
    backward = len(chain.seconds)
    before: Sequence[_Collective] = ()
    for module in reversed(range(len(model.backward_s))):
        mine = model.again[module : module + 1]
        chain.add(_delay_s(mine), after=before, sends=mine)
        first, *others = (stage[module] for stage in model.stages)
        chain.add(model.backward_s[module] + first.delay_s, after=mine, sends=[first])
        before = [first]
        for stage in others:
            chain.add(stage.delay_s, after=before, sends=[stage])
            before = [stage]
    return backward


def _delay_s(collectives: Sequence[_Collective]) -> float:
    return sum(each.delay_s for each in collectives)


def _scheduled(chain: _Chain, model: _Modules) -> int:
    """Build the program under Prophet: parameters are prefetched, and averages and updates are deferred."""
    count = len(model.forward_s)
    averages = model.stages[-1]
    for module in range(count):
        for other in range(module + AHEAD if module else 0, min(module + AHEAD + 1, count)):
            chain.add(after_last=[averages[other]], sends=model.gathers[other : other + 1])
        chain.add(model.forward_s[module], after=model.gathers[module : module + 1])
    backward = len(chain.seconds)
    for module in reversed(range(count)):
        newest = module - AHEAD
        for other in reversed(range(max(newest, 0), count if module == count - 1 else newest + 1)):
            chain.add(sends=model.again[other : other + 1])
        chain.add(model.backward_s[module], after=model.again[module : module + 1], sends=[model.stages[0][module]])
        if len(model.stages) > 1 and module + 1 < count:  # The next stage starts when the shards' sum has arrived.
            chain.add(after=[model.stages[0][module + 1]], sends=[averages[module + 1]])
    if len(model.stages) > 1:
        chain.add(after=[model.stages[0][0]], sends=[averages[0]])
    return backward


def job_of_phases(profile: Profile, cut: Cut) -> Job:
    """Return the job of a program that clips by the norm of all gradients, with the blocks of `cut` in two phases.

    Forward begins when all blocks are reduced. Each layer waits until its own blocks are gathered. Tensors have half of
    their block's bytes, which is the cost of one phase on the channel of an all-reduce.
    """
    iteration = Iteration(profile)
    blocks = blocks_of([gradient.size_bytes for gradient in profile.gradients], [0] * len(profile.gradients), cut)
    loads = loads_of(blocks)
    reduces, gathers = ([_Collective(load.size_bytes / 2, load.first) for load in loads] for _ in range(2))
    chain = _Chain()
    chain.add(after_last=reduces, sends=gathers)
    for place, (seconds, generated) in enumerate(
        zip(iteration.seconds, iteration.layout(loads).generates, strict=True)
    ):
        needed = [gather for gather in gathers if gather.gradient == place] if place < iteration.backward else []
        chain.add(seconds, after=needed, sends=[reduces[load] for load in generated])
    return chain.job(profile.name, iteration.backward + 1)
