"""The paper's own algorithm (Zhang et al., ICPP 2021, section 4.1, Algorithm 1), to the letter, as far as a job allows.

Rule of this file: Algorithm 1 as a plan for the queue, with no ideas beyond the paper's. Its offline form, which gives
each gradient's start time, is algorithms/assembler.py: under this plan the queue starts gradients at the same times.
`prophet` is its practical successor. docs/policies/prophet-paper.md has the mapping, and what the letter costs.

- Each whole gradient is one message, or several if it exceeds BytePS's own partition size.
- Constraints 7 and 9: a gradient is sent when it is ready, the most urgent first.
- Constraint 8, one after another: the bytes in flight are at most those of the largest message. So a large gradient is
  sent alone, and small ones follow one another on the wire without a pause, as line 8 of the algorithm counts them.
- Constraint 11, before *every* gradient: none starts unless it will end before the next more urgent one is generated,
  even one of the same step. After gradient 0 nothing more urgent follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.plan import Deadline, Plan, QueuePlan
from prophet_scheduler.policies import Blocks, Definition
from prophet_scheduler.policies.algorithms.plans import LEAST_SLACK_S, ONE_TASK, distinct_times

if TYPE_CHECKING:
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.profile import Profile


class ProphetPaper:
    """Policy without options: forward order, one gradient at a time, until profile and network are known."""

    name = "prophet-paper"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        if profile is None:
            return Plan(push=QueuePlan(order={}, credit=ONE_TASK), pull=QueuePlan(order={}), policy=self.name)
        order = profile.rank_by_id
        credit = min(MOST_BLOCK_BYTES, max(gradient.size_bytes for gradient in profile.gradients))
        deadlines: tuple[Deadline, ...] = ()
        times_s = distinct_times(profile)
        if network is not None:
            # In order of generation, down to gradient 0. Nothing waits for the first: all else has been sent by then.
            deadlines = tuple(Deadline(times_s[gradient], rank) for gradient, rank in reversed(order.items()))[1:]
        return Plan(
            push=QueuePlan(order=order, credit=credit, deadlines=deadlines),
            pull=QueuePlan(order=order),
            generation_s=times_s if deadlines else {},
            network=network,
            deadline_slack_s=max(jitter_s, LEAST_SLACK_S),
            policy=self.name,
        )


POLICIES = {
    "prophet-paper": Definition(
        "Algorithm 1 of the paper to the letter: whole gradients, one at a time",
        lambda options, partition_bytes: ProphetPaper(),
        page="policies/prophet-paper.md",
        blocks=Blocks.WHOLE,
    )
}
