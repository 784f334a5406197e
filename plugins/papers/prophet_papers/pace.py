"""PACE (Bao et al., INFOCOM 2020) as a policy for the queue: fused tensors, longest tail first, one at a time.

Rule of this file: turn a profile and a network into a plan; the algorithms are in algorithms/pace/.

Mapping of the paper to the queue: A group is a fused tensor. In the paper, a segment's priority is its start slot;
here, a tensor's rank is its position by the longest tail, the rule that produced those slots. As long as predictions
hold, the two are the same; if a gradient is late, ranks still give the best order of those that are ready. With a
credit of one task, a tensor can be interrupted after each of its tasks, so the cuts are as fine as the partitions. An
engine that can cut a tensor anywhere finds the paper's own cuts in `Pace.segments`.
"""

from __future__ import annotations

from functools import partial

from prophet_papers.algorithms.pace.fusion import Fusion, balanced_fusion, best_fusion, segment_bytes
from prophet_scheduler.core.graph import training_graph
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition
from prophet_scheduler.policies.algorithms.plans import ONE_TASK


class Pace:
    """PACE, with nothing to tune. Layers are assumed to form a chain (docs/decisions/graphs-of-jobs.md).

    `balanced` is the paper's fusion; without it, the groups are the best possible ones of neighbours (`best_fusion`).
    """

    def __init__(self, balanced: bool = True) -> None:
        self.name = "pace" if balanced else "pace-best"
        self._fuse = balanced_fusion if balanced else best_fusion

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan: forward order until both are known, since the gain and delay of fusion depend on both."""
        if profile is None or network is None:
            order = profile.rank_by_id if profile else {}
            push = QueuePlan(order=order, credit=ONE_TASK)
            return Plan(push=push, pull=QueuePlan(order=order), policy=self.name)
        gradient_of = {f"transfer.{index}": gradient for index, gradient in enumerate(profile.gradient_ids)}
        fusion = self._fuse(training_graph(profile), network)
        urgent = urgency(fusion)
        members = [[gradient_of[name] for name in reversed(fusion.groups[group])] for group in urgent]
        order = {gradient: rank for rank, gradient in enumerate(g for group in members for g in group)}
        groups = {gradient: number for number, group in enumerate(members) for gradient in group}
        return Plan(
            push=QueuePlan(order=order, credit=ONE_TASK, groups=groups),
            pull=QueuePlan(order=order),
            generation_s=profile.generation_by_id,
            size_bytes=profile.size_by_id,
            policy=self.name,
        )

    def segments(self, profile: Profile, network: Network) -> dict[int, tuple[int, ...]]:
        """Return the bytes of each segment of a tensor, in sending order, by the tensor's group in the plan."""
        graph = training_graph(profile)
        fusion = self._fuse(graph, network)
        cuts = segment_bytes(fusion, graph, network)
        return {number: cuts[group] for number, group in enumerate(urgency(fusion))}


def urgency(fusion: Fusion) -> list[int]:
    """Return the groups by falling tail, and equal tails by falling release (for layers, the earlier layer first).

    Equal tails may go in any order. But forward times are 0 until they are known, and then forward order is a better
    guess than order of arrival.
    """
    transfers = fusion.problem.transfers
    return sorted(range(len(transfers)), key=lambda i: (-transfers[i].tail, -i))


_definition = partial(Definition, page="policies/pace.md", traced=True, groups=True)

POLICIES = {
    "pace": _definition("PACE's fused tensors, the longest tail first", lambda options, partition_bytes: Pace()),
    "pace-best": _definition(
        "PACE with the best groups that neighbours can form", lambda options, partition_bytes: Pace(balanced=False)
    ),
}
