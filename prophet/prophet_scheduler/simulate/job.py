"""Work of the workers in a simulation: operations on the processor, tensors on the wire, and their dependencies.

Rule of this file: conversion of a profile to numbers for the native simulation. No cluster, no policy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prophet_scheduler.core._native import OperationSpec, TensorSpec
from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.core.iteration import Iteration, Load
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class Job:
    """One iteration of a worker. `tensors[i]` travels as one, with the gradients `members[i]` or parts of them.

    Operations are in the order in which the processor prefers them. `backward` is the index of backward's first
    operation. `recut` returns the same job under another cut; None if it cannot be cut.
    """

    name: str
    operations: tuple[OperationSpec, ...]
    tensors: tuple[TensorSpec, ...]
    members: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    """Bytes of each tensor."""
    backward: int | None = None
    ids: tuple[int, ...] = ()
    """Ids of tensors in tasks and events; empty for their indices."""
    generates: tuple[tuple[int, ...], ...] = ()
    """Tensors that each operation helps to generate."""
    cut: Cut | None = None
    """Cut that made the tensors; None if they are whole gradients."""
    recut: Callable[[Cut], Job] | None = None


def job_of_profile(
    profile: Profile,
    members: Sequence[Sequence[int]],
    *,
    barrier: bool = False,
    parts: Mapping[int, Sequence[int]] | None = None,
) -> Job:
    """Return a job with forward layer by layer, then backward in the profile's steps. Tensors have whole gradients.

    `members`: the gradients of each tensor, which travel as one. `barrier`: forward begins when everything is back, as
    with BytePS's own optimizer; without it, each layer waits for its own gradient. `parts`: the partition sizes in
    bytes of those tensors that the policy cuts.
    """
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    loads = [
        Load(tensor, sum(sizes[index] for index in bucket), min(bucket), tuple((parts or {}).get(tensor, ())))
        for tensor, bucket in enumerate(members)
    ]
    return _job(profile, loads, members, barrier)


def job_of_cut(
    profile: Profile,
    cut: Cut,
    fusion: bool = True,
    *,
    barrier: bool = False,
    registered: Sequence[int] | None = None,
) -> Job:
    """Return the job of `job_of_profile` with the blocks of `cut` as tensors, as in Prophet's front end.

    Without `fusion`, no block has more than one gradient. `registered`: the gradients' indices in the profile, in the
    order in which the model registers them, and so in the arena's order; None for forward order.
    """
    order = range(len(profile.gradients)) if registered is None else registered
    sizes = [profile.gradients[place].size_bytes for place in order]
    blocks = blocks_of(sizes, [0 if fusion else None] * len(sizes), cut)
    members = [sorted(order[piece.gradient] for piece in block.pieces) for block in blocks]
    loads = [Load(block.id, block.size_bytes, gradients[0]) for block, gradients in zip(blocks, members, strict=True)]
    job = _job(profile, loads, members, barrier)
    again = functools.partial(job_of_cut, profile, fusion=fusion, barrier=barrier, registered=registered)
    return replace(job, cut=cut, recut=again)


def _job(profile: Profile, loads: Sequence[Load], members: Sequence[Sequence[int]], barrier: bool) -> Job:
    iteration = Iteration(profile)
    layout = iteration.layout(loads, barrier=barrier)
    return Job(
        profile.name,
        tuple(iteration.operations(layout)),
        tuple(layout.tensors),
        tuple(tuple(bucket) for bucket in members),
        tuple(load.size_bytes for load in loads),
        iteration.backward,
        tuple(load.id for load in loads),
        tuple(tuple(places) for places in layout.generates),
    )


def alone(profile: Profile) -> list[list[int]]:
    """Return the members for tensors of one gradient each, as with BytePS's own optimizer."""
    return [[index] for index in range(len(profile.gradients))]


def fused_by_plan(profile: Profile, plan: Plan) -> tuple[list[list[int]], Plan]:
    """Return (members of the tensors formed by a plan's groups, the plan for these tensors).

    A tensor has the rank of its most urgent member. In a job the front end does the same: a group is one message.
    """
    groups: dict[int, list[int]] = {}
    for index, gradient in enumerate(profile.gradient_ids):
        groups.setdefault(plan.push.groups.get(gradient, -1 - index), []).append(index)
    members = sorted(groups.values())
    ids = profile.gradient_ids

    def tensors(half: QueuePlan) -> QueuePlan:
        if half.order is None:
            return replace(half, groups={})
        ranks = [min(half.order.get(ids[index], ids[index]) for index in bucket) for bucket in members]
        urgent = sorted(range(len(members)), key=ranks.__getitem__)
        return replace(half, groups={}, order={tensor: rank for rank, tensor in enumerate(urgent)})

    generation_s = {
        tensor: max(plan.generation_s[ids[index]] for index in bucket)
        for tensor, bucket in enumerate(members)
        if all(ids[index] in plan.generation_s for index in bucket)
    }
    tensor_plan = replace(plan, push=tensors(plan.push), pull=tensors(plan.pull), generation_s=generation_s)
    return members, replace(tensor_plan, size_bytes={})
