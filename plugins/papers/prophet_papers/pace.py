"""PACE (Bao et al., INFOCOM 2020) as a policy for the queue: fused tensors, the longest tail first, one at a time.

Rule of this file: from a profile and a network to a plan; the algorithms are in algorithms/pace/.

How the paper maps to the queue. A group is a fused tensor. The paper gives each segment the slot in which it starts
as its priority; here a tensor's rank is its place by the longest tail, which is the rule that made those slots. While
all goes as predicted the two are the same; when a gradient is late the ranks still say what is best among what is
there. With a credit of one task a tensor is interrupted after each of its tasks, so the cuts are as fine as the
partitions are. An engine that can cut a tensor anywhere finds the paper's own cuts in `Pace.segments`.
"""

from __future__ import annotations

from functools import partial

from prophet_papers.algorithms.pace import Fusion, balanced_fusion, best_fusion, segment_bytes
from prophet_scheduler.core.graph import training_graph
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies import Definition

ONE_SEGMENT = 1
"""The credit: a task goes when nothing is in flight. An all-reduce fills the wire, and a second one only waits in it.
"""


class Pace:
    """PACE, with nothing to tune. Layers are taken to follow one another (docs/decisions/graphs-of-jobs.md).

    `balanced` is the paper's fusion; without it the groups are the best that neighbours can form (`best_fusion`).
    """

    def __init__(self, balanced: bool = True) -> None:
        self.name = "pace" if balanced else "pace-best"
        self._fuse = balanced_fusion if balanced else best_fusion

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Forward order until both are known: what fusing saves and where it delays depends on both."""
        if profile is None or network is None:
            order = profile.rank_by_id if profile else {}
            push = QueuePlan(order=order, credit=ONE_SEGMENT)
            return Plan(push=push, pull=QueuePlan(order=order), policy=self.name)
        gradient_of = {f"transfer.{index}": gradient for index, gradient in enumerate(profile.gradient_ids)}
        fusion = self._fuse(training_graph(profile), network)
        urgent = urgency(fusion)
        members = [[gradient_of[name] for name in reversed(fusion.groups[group])] for group in urgent]
        order = {gradient: rank for rank, gradient in enumerate(g for group in members for g in group)}
        groups = {gradient: number for number, group in enumerate(members) for gradient in group}
        return Plan(
            push=QueuePlan(order=order, credit=ONE_SEGMENT, groups=groups),
            pull=QueuePlan(order=order),
            generation_s=profile.generation_by_id,
            size_bytes=profile.size_by_id,
            policy=self.name,
        )

    def segments(self, profile: Profile, network: Network) -> dict[int, tuple[int, ...]]:
        """Return by group of the plan the bytes of the segments of its tensor, in the order they go in."""
        graph = training_graph(profile)
        fusion = self._fuse(graph, network)
        cuts = segment_bytes(fusion, graph, network)
        return {number: cuts[group] for number, group in enumerate(urgency(fusion))}


def urgency(fusion: Fusion) -> list[int]:
    """The groups by the longest tail; of equal tails the one released last, which in layers is the earlier layer.

    Equal tails may go in any order. But forward times that are not known yet are 0, and then forward order is the
    better guess than order of arrival.
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
