"""Caramel (Hashemi et al., arXiv:2004.14020, 2020) as a policy: its batches, in the order of its packing.

Rule of this file: turn a profile and a network into a plan; the algorithms are in algorithms/caramel/.

Mapping of the paper to the queue: A batch is a group. Its position in the packing, by time, is its rank. One transfer
has the network at a time, so the credit is 1. The paper makes transfers wait for compute operations, so that none is
early. The queue has no start times, but it has deadlines: a batch may go before its slot only if it finishes before the
next batch packed ahead of it is predicted to be ready. So a batch packed into the forward pass does not hold up the
backward pass and, if predictions hold, none finishes later than packed. The order of compute stays the program's
(docs/policies/caramel.md). `depths` tells how deep to cut each batch; the queue cannot do that.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from prophet_papers.algorithms.caramel.batching import Batch, adaptive_depth, batch, threshold_bytes
from prophet_papers.algorithms.caramel.packing import Packing, pack
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline, Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition
from prophet_scheduler.policies.algorithms.plans import LEAST_SLACK_S, ONE_TASK, distinct_times


class Caramel:
    """Batches of small gradients, packed alongside the backward pass and the next forward pass.

    The network to plan for is the collective's cost line (simulate.collectives, or measured). `batching` False sends
    every gradient alone; `scheduling` False sends batches as they become ready. These are the switches of the paper's
    ablation (section 5). `holding` False omits the deadlines: the network is then never idle while a batch waits, but a
    large batch may hold up others. `threshold` (bytes) replaces the one of the cost line; UserError if below 0.
    """

    def __init__(
        self, batching: bool = True, scheduling: bool = True, holding: bool = True, threshold: float | None = None
    ) -> None:
        if threshold is not None and not threshold >= 0:
            raise UserError(f"threshold is {threshold}; it must be 0 or more bytes")
        switches = {"batching": batching, "scheduling": scheduling, "holding": holding}
        off = [switch for switch, on in switches.items() if not on]
        self.name = "-no-".join(["caramel", *off])
        self._batching = batching
        self._scheduling = scheduling
        self._holding = scheduling and holding
        self._threshold = threshold

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan: without a profile or a network, no batches, in order of arrival, one at a time."""
        if profile is None:
            return Plan(push=QueuePlan(credit=ONE_TASK), policy=self.name)
        ids = profile.gradient_ids
        if network is None:
            order = {gradient: rank for rank, gradient in enumerate(reversed(ids))}
            push, pull = QueuePlan(order=order, credit=ONE_TASK), QueuePlan(order=order)
            return Plan(push=push, pull=pull, size_bytes=profile.size_by_id, policy=self.name)
        batches, packing = self.pack(profile, network)
        members = [[ids[index] for index in joined.members] for joined in batches]
        in_turn = [slot.batch for slot in packing.slots] if self._scheduling else list(range(len(batches)))
        order = {gradient: rank for rank, index in enumerate(in_turn) for gradient in members[index]}
        generation_s: Mapping[int, float] = profile.generation_by_id
        deadlines: list[Deadline] = []
        if self._holding:
            generation_s = distinct_times(profile)
            ready = [max(generation_s[gradient] for gradient in gradients) for gradients in members]
            deadlines = [Deadline(ready[index], rank) for rank, index in enumerate(in_turn)]
        # A batch of one is a group too, so that its partitions stay together.
        groups = {gradient: group for group, gradients in enumerate(members) for gradient in gradients}
        return Plan(
            push=QueuePlan(order, ONE_TASK, tuple(sorted(deadlines, key=lambda d: d.time_s)), groups),
            pull=QueuePlan(order=order),
            generation_s=generation_s,
            size_bytes=profile.size_by_id,
            network=network,
            deadline_slack_s=max(jitter_s, LEAST_SLACK_S),
            policy=self.name,
        )

    def pack(self, profile: Profile, network: Network) -> tuple[tuple[Batch, ...], Packing]:
        """Return the batches and their slots."""
        batches = batch(profile, network, self._limit(network) if self._batching else 0.0)
        return batches, pack(batches, profile.backward_s, profile.forward_s, network, forward=self._scheduling)

    def depths(self, profile: Profile, network: Network) -> tuple[int, ...]:
        """Return the number of chunks for each batch of `pack` (section 4.4)."""
        batches, _ = self.pack(profile, network)
        limit = self._limit(network)
        return tuple(adaptive_depth(joined.size_bytes, limit) for joined in batches)

    def _limit(self, network: Network) -> float:
        return threshold_bytes(network) if self._threshold is None else self._threshold


_definition = partial(Definition, page="policies/caramel.md", traced=True, groups=True)

POLICIES = {
    "caramel": _definition("Caramel's batches and packing", lambda options, partition_bytes: Caramel()),
    "caramel-no-holding": _definition(
        "Caramel that never holds a batch back", lambda options, partition_bytes: Caramel(holding=False)
    ),
    "caramel-no-scheduling": _definition(
        "Caramel with batches as they become ready",
        lambda options, partition_bytes: Caramel(scheduling=False),
        waits=True,
    ),
    "caramel-no-batching-no-scheduling": _definition(
        "Caramel with every gradient alone, as it becomes ready",
        lambda options, partition_bytes: Caramel(batching=False, scheduling=False),
        waits=True,
    ),
}
