"""Groups of a policy on an engine of collectives: a group is one collective, and its borders are borders of the cut.

Rule of this file: pure functions from the learned profile of whole gradients to blocks, their groups, and one order for
all ranks. Times are in seconds, sizes in bytes.

Such a policy decides once, after some iterations in which each gradient travelled alone, just as its system decides
from a profile or a trace. A group of neighbours in the arena is one block, or several if the policy cuts it. Any other
group (Caramel's batches skip the large gradients between their small ones) is several blocks that travel together.
These are copied into one message, as the systems copy everything they fuse. A message has elements of one kind, so a
group with two kinds is two messages.

Messages are sent in the order of a queue with the policy's plan (sequence.py). A message is ready when the last
gradient of its group is predicted to be ready.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from prophet_scheduler.core.cut import ITEM_BYTES, Block, Borders, arena_places, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.policy import CuttingPolicy, Policy
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies.algorithms.plans import distinct_times
from prophet_scheduler.policies.algorithms.sequence import iteration_s, make_sequence

LEARNING_ITERATIONS = 12
"""Iterations before groups are formed: enough for the profile's medians to ignore a late iteration."""


@dataclass(frozen=True)
class Grouping:
    """A cut, and the indices of its blocks for each of the `collectives`, in start order.

    Predictions: `ends_s`, the end of each in seconds after backward began, and `iteration_s`.
    """

    cut: Borders
    collectives: tuple[tuple[int, ...], ...]
    ends_s: tuple[float, ...]
    iteration_s: float


def make_grouping(
    policy: Policy,
    profile: Profile,
    network: Network,
    jitter_s: float,
    sizes: Sequence[int],
    kinds: Sequence[Hashable | None],
) -> Grouping:
    """Return the policy's groups for gradients of these sizes and kinds, in forward order (see blocks_of).

    `profile` has the blocks of Borders.of_gradients(sizes), by id. A gradient missing from it travels alone.
    """
    plan = policy.plan(profile, network, jitter_s)
    whole = blocks_of(sizes, kinds, Borders.of_gradients(sizes))
    group_of: list[Hashable] = [("alone", gradient) for gradient in range(len(sizes))]
    id_of: dict[int, int] = {}
    for block in whole:
        gradient = block.pieces[0].gradient
        id_of[gradient] = block.id
        if block.id in plan.push.groups:
            group_of[gradient] = plan.push.groups[block.id]
    cut_groups: dict[Hashable, tuple[int, ...]] = {}
    if isinstance(policy, CuttingPolicy):
        cut_groups = {group: parts for group, parts in policy.segments(profile, network).items() if len(parts) > 1}
    cut = Borders.at(_borders(sizes, group_of, cut_groups), sum(sizes))
    blocks = blocks_of(sizes, kinds, cut)
    messages = _messages(blocks, kinds, group_of, cut_groups)
    known = dict(zip(profile.gradient_ids, profile.gradients, strict=True))
    generated_s = _generated_s(known, id_of, len(sizes))
    rows, ids, ranks = [], [], []
    order = plan.push.order
    for places in messages:
        first = blocks[places[0]].pieces[0].gradient
        if group_of[first] in cut_groups:  # Its parts are sent once all of it is ready.
            first = group_of.index(group_of[first])
        size = sum(blocks[place].size_bytes for place in places)
        forward_s = sum(
            known[id_of[piece.gradient]].forward_s * (piece.stop - piece.start) / sizes[piece.gradient]
            for place in places
            for piece in blocks[place].pieces
            if id_of[piece.gradient] in known
        )
        ids.append(blocks[places[0]].id)
        rows.append(GradientProfile(f"message{ids[-1]}", size, generated_s[first], forward_s))
        members = [id_of[piece.gradient] for place in places for piece in blocks[place].pieces]
        ranks.append(min((order[id_] for id_ in members if id_ in order), default=len(rows)) if order else 0)
    travelling = Profile(profile.name, tuple(rows), tuple(ids))
    sequence = make_sequence(travelling, network, _plan_of_messages(plan, travelling, ranks))
    return Grouping(
        cut,
        tuple(messages[place] for place in sequence.order),
        tuple(sequence.ends_s[place] for place in sequence.order),
        iteration_s(travelling, sequence),
    )


def _borders(
    sizes: Sequence[int], group_of: Sequence[Hashable], cut_groups: dict[Hashable, tuple[int, ...]]
) -> list[int]:
    """Return the places at which a group begins, resumes after another group, or is cut."""
    places = arena_places(sizes)
    there = [gradient for gradient, size in enumerate(sizes) if size]
    borders = [places[b] for a, b in itertools.pairwise(there) if group_of[a] != group_of[b]]
    for group, parts in cut_groups.items():
        members = [gradient for gradient in there if group_of[gradient] == group]
        at = places[members[0]]
        for part in parts[:-1]:
            at += part
            # Round up: a part must end when something more urgent is ready, not just before.
            gradient = bisect.bisect_right(places, at) - 1
            within = ITEM_BYTES * ((at - places[gradient]) // ITEM_BYTES + 1)
            borders.append(min(places[gradient] + within, places[gradient + 1]))
    return borders


def _messages(
    blocks: Sequence[Block],
    kinds: Sequence[Hashable | None],
    group_of: Sequence[Hashable],
    cut_groups: dict[Hashable, tuple[int, ...]],
) -> list[tuple[int, ...]]:
    """Return the indices of the blocks of each message, sorted by the first one."""
    together: dict[Hashable, list[int]] = {}
    for place, block in enumerate(blocks):
        first = block.pieces[0].gradient
        group, kind = group_of[first], kinds[first]
        alone = kind is None or group in cut_groups
        together.setdefault(("block", place) if alone else ("group", group, kind), []).append(place)
    return [tuple(places) for places in together.values()]


def _generated_s(known: dict[int, GradientProfile], id_of: dict[int, int], count: int) -> list[float]:
    """Return the generation time of each gradient. An unknown gradient counts as generated with its successor."""
    last_s = min(row.generation_s for row in known.values())
    times = []
    for gradient in reversed(range(count)):
        row = known.get(id_of.get(gradient, -1))
        last_s = max(last_s, row.generation_s) if row is not None else last_s
        times.append(last_s)
    return times[::-1]


def _plan_of_messages(plan: Plan, travelling: Profile, ranks: Sequence[int]) -> Plan:
    order = None
    if plan.push.order is not None:
        # Deadlines refer to ranks, so these must stay as they are. Otherwise equal ranks go in forward order.
        in_turn = sorted(range(len(ranks)), key=lambda place: (ranks[place], place))
        ranks = ranks if plan.push.deadlines else sorted(range(len(ranks)), key=in_turn.__getitem__)
        order = dict(zip(travelling.ids, ranks, strict=True))
    return Plan(
        push=QueuePlan(order=order, credit=1, deadlines=plan.push.deadlines),
        generation_s=distinct_times(travelling) if plan.push.deadlines else {},
        size_bytes=travelling.size_by_id,
        network=plan.network,
        deadline_slack_s=plan.deadline_slack_s,
        policy=plan.policy,
    )
