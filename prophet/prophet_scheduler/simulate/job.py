"""What the workers of a simulation do: operations on the processor, tensors on the wire, and who waits for whom.

Rule of this file: from a profile or a graph to numbers for the native simulation; no cluster, no policy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from prophet_scheduler.core._native import OperationSpec, TensorSpec
from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, OperationKind
from prophet_scheduler.core.iteration import Iteration, Load
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class Job:
    """One iteration of a worker: `tensors[i]` travels as one, and carries the gradients `members[i]`, or parts of them.

    Operations come in the order in which the processor prefers them. `backward` is the one that backward begins
    with, None where that has no meaning. `recut` makes the same job of another cut, None where there is none.
    """

    name: str
    operations: tuple[OperationSpec, ...]
    tensors: tuple[TensorSpec, ...]
    members: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    """Bytes of each tensor."""
    backward: int | None = None
    ids: tuple[int, ...] = ()
    """What tasks and events call each tensor; empty for its place."""
    generates: tuple[tuple[int, ...], ...] = ()
    """By operation, the tensors whose generation it is part of; of a job that can be cut anew."""
    cut: Cut | None = None
    """Which tensors are the blocks of; None where they are of whole gradients."""
    recut: Callable[[Cut], Job] | None = None

    @property
    def members_by_id(self) -> dict[int, tuple[int, ...]]:
        """The gradients of each tensor, by what events call it."""
        return dict(zip(self.ids or range(len(self.members)), self.members, strict=True))


def job_of_profile(
    profile: Profile,
    members: Sequence[Sequence[int]],
    *,
    barrier: bool = False,
    parts: Mapping[int, Sequence[int]] | None = None,
) -> Job:
    """Forward layer by layer, then backward in the profile's steps; each tensor is of whole gradients.

    `members`: the gradients that travel as one, for each tensor. `barrier`: forward begins when everything is back,
    as with BytePS's own optimizer; without it each layer waits for its own gradient. `parts`: the bytes of a
    tensor's partitions, where its policy cuts it itself.
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
    """As `job_of_profile`, and what travels are the blocks of `cut`, as Prophet's front end has it.

    Without `fusion` no block has more than one gradient. `registered`: the gradients' places in the profile in the
    order in which the model registers them, and so in which they lie in the arena; None for forward order.
    """
    order = range(len(profile.gradients)) if registered is None else registered
    sizes = [profile.gradients[place].size_bytes for place in order]
    blocks = blocks_of(sizes, [0 if fusion else None] * len(sizes), cut)
    members = [sorted(order[piece.gradient] for piece in block.pieces) for block in blocks]
    loads = [Load(block.id, block.size_bytes, gradients[0]) for block, gradients in zip(blocks, members, strict=True)]
    job = _job(profile, loads, members, barrier)
    again = functools.partial(job_of_cut, profile, fusion=fusion, barrier=barrier, registered=registered)
    return replace(job, cut=cut, recut=again)


def _job(profile: Profile, loads: Sequence[Load], members: Sequence[Sequence[int]], barrier: bool = False) -> Job:
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
    """Each gradient travels alone, as with BytePS's own optimizer."""
    return [[index] for index in range(len(profile.gradients))]


def groups_as_tensors(profile: Profile, plan: Plan) -> dict[int, int]:
    """By group of a plan: the place of its tensor in what `fused_by_plan` returns."""
    members, _ = fused_by_plan(profile, plan)
    ids = profile.gradient_ids
    first = {ids[bucket[0]]: place for place, bucket in enumerate(members)}
    return {plan.push.groups[gradient]: place for gradient, place in first.items() if gradient in plan.push.groups}


def fused_by_plan(profile: Profile, plan: Plan) -> tuple[list[list[int]], Plan]:
    """The groups of a plan as tensors, and the plan for them: a tensor has the rank of its most urgent member.

    In a job that is the front end's work too: what travels as one is one tensor and one message.
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


def job_of_graph(graph: Graph, order: Mapping[str, int] | None = None) -> Job:
    """A graph with transfers in it, such as `prophet_scheduler.core.graph.training_graph` makes, as an iteration that
    repeats.

    What follows a transfer is the forward pass of the next iteration, so an iteration computes that first and then
    the rest; the rest begins when the forward pass has ended. A transfer without inputs (a parameter received) is
    asked for when the iteration before is over. `order` says which of several ready operations the processor takes
    first, by name; otherwise it is the graph's own order. Raises UserError where a transfer waits for a transfer.
    """
    after = _after_transfers(graph)
    computing = sorted(graph.computing, key=lambda o: (o.name not in after, (order or {}).get(o.name, 0)))
    transfers = graph.transfers
    place = {operation.name: index for index, operation in enumerate(computing)}
    tensor = {operation.name: index for index, operation in enumerate(transfers)}
    inputs: list[set[int]] = [set() for _ in computing]
    generates: list[set[int]] = [set() for _ in computing]
    needed_by: list[set[int]] = [set() for _ in transfers]
    for operation in graph.operations:
        for name in operation.inputs:
            if operation.kind is OperationKind.TRANSFER:
                if name in tensor:
                    raise UserError(f"graph {graph.name!r}: transfer {operation.name!r} waits for a transfer, {name!r}")
                generates[place[name]].add(tensor[operation.name])
            elif name in tensor:
                needed_by[tensor[name]].add(place[operation.name])
            elif (name in after) == (operation.name in after):
                inputs[place[operation.name]].add(place[name])
            # Otherwise forward waits for backward, of the iteration before: that is over when this one begins.
    forward = len(after)
    ends_forward = set(range(forward)).difference(*inputs[:forward])
    for index in range(forward, len(computing)):
        if not inputs[index]:
            inputs[index] |= ends_forward
    ends = set(range(len(computing))).difference(*inputs)
    for operation in transfers:
        if not operation.inputs:
            for index in ends:
                generates[index].add(tensor[operation.name])
    successors: list[list[int]] = [[] for _ in computing]
    for index, sources in enumerate(inputs):
        for before in sorted(sources):
            successors[before].append(index)
    return Job(
        graph.name,
        tuple(
            OperationSpec(operation.time_s, len(inputs[i]), successors[i], sorted(generates[i]))
            for i, operation in enumerate(computing)
        ),
        tuple(TensorSpec(operation.size_bytes, sorted(needed_by[i])) for i, operation in enumerate(transfers)),
        tuple((i,) for i in range(len(transfers))),
        tuple(operation.size_bytes for operation in transfers),
        forward if forward < len(computing) else None,
    )


def _after_transfers(graph: Graph) -> set[str]:
    """Names of the computing that waits for a transfer, directly or not."""
    after: set[str] = set()
    for operation in graph.operations:  # inputs come first
        if operation.kind is OperationKind.COMPUTE and any(
            name in after or graph[name].kind is OperationKind.TRANSFER for name in operation.inputs
        ):
            after.add(operation.name)
    return after
