"""Prophet (Zhang et al., ICPP 2021): forward order, blocks and credit chosen by prediction from the learned pattern.

Rule of this file: the online form of Algorithm 1 as a plan for the queue. The algorithm as printed is in
policies/algorithms/assembler.py, the search for the best blocks in algorithms/chooser.py.

The paper assembles a block by adding the most urgent ready gradient as long as its transfer ends before a more urgent
one is generated. Here that becomes two decisions. The borders of blocks and the bytes in flight are chosen by
predicting the iteration. And whenever the wire can take another block, the queue picks one from those ready at that
time, so it follows what actually happens and not what the profile predicted.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.policies import Blocks, Definition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prophet_scheduler.core.choice import Choice, Question, Search
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile

UNMEASURED_BYTES = 2 << 20
"""Bytes in flight until the network is known: two of the largest first blocks. Measurements are best while pushes
follow one another without a pause."""


class Prophet:
    """Policy without options: blocks and credit follow from measurements.

    `partition_bytes`: block size until something better is known.
    """

    name = "prophet"

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return a plan that needs no shape of the cluster: the cut stays, and the credit covers the delay."""
        # Ids that rise in forward order are themselves ranks, under any cut.
        order = {} if profile is None or _forward_ids(profile) else profile.rank_by_id
        return self._plan(order, network, self.credit(network))

    def search(self, question: Question) -> Search:
        """Return the search for the cut and the credit with the shortest iteration."""
        from prophet_scheduler.policies.algorithms.chooser import ChoiceSearch

        return ChoiceSearch(question)

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        # Blocks of the arena have ids in forward order, which are ranks under any cut. A learned order only applies to
        # one cut: blocks of another cut would be ranked by place among blocks ranked by number.
        return replace(self._plan({}, question.network, choice.credit), cut=choice.cut)

    def _plan(self, order: Mapping[int, int], network: Network | None, credit: int) -> Plan:
        return Plan(
            push=QueuePlan(order=order, credit=credit),
            # Pulls follow the pushes in the same order, and the server answers them as keys complete. With a credit on
            # pulls, the downlink would be idle whenever another worker is late with an urgent key.
            pull=QueuePlan(order=order),
            network=network,
            policy=self.name,
        )

    def credit(self, network: Network | None) -> int:
        """Return the bytes in flight that just keep the wire busy: a queue on the wire would delay urgent gradients.

        With W partitions in flight, a partition that has left the wire is replaced when its acknowledgement arrives, so
        the wire stays busy if the W - 1 others take at least that long. W is a whole number: a fraction of a partition
        would only admit small gradients, which take little time and still wait for their acknowledgements. The delay is
        that of an idle network. A credit for a busy network's delay would feed on itself: acknowledgements wait behind
        pulls, and more in flight means more pulls.
        """
        if network is None:
            return max(UNMEASURED_BYTES, self._partition_bytes)
        return max(2, math.ceil(network.to_cover_delay(self._partition_bytes))) * self._partition_bytes


def _forward_ids(profile: Profile) -> bool:
    return all(a < b for a, b in itertools.pairwise(profile.gradient_ids))


POLICIES = {
    "prophet": Definition(
        "learns the job's gradient pattern and the network, and plans from them",
        lambda options, partition_bytes: Prophet(partition_bytes),
        blocks=Blocks.ADAPTIVE,
    )
}
