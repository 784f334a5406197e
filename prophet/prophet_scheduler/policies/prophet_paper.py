"""The paper's own algorithm (Zhang et al., ICPP 2021, section 4.1, Algorithm 1), to the letter, as far as a job allows.

Rule of this file: Algorithm 1 as a plan for the queue, with no more judgement than the paper's. Its offline form, which
says when each gradient starts, is algorithms/assembler.py: under this plan the queue starts them at the same times.
`prophet` is what became of it in a job. docs/policies/prophet-paper.md has the mapping, and what it is worth.

- Whole gradients, each a message; one above BytePS's own partition size is so many messages.
- Constraints 7 and 9: a gradient goes when it is there, the most urgent first.
- Constraint 8, one after another: as many bytes are in flight as the largest message has. So a large gradient goes
  alone, and small ones follow one another on the wire without a pause, as line 8 of the algorithm counts them.
- Constraint 11, before *every* gradient: none starts that would not end before the next more urgent one is generated,
  be it of the same step. After gradient 0 nothing more urgent is to come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.plan import Deadline, Plan, QueuePlan
from prophet_scheduler.policies import Blocks, Definition
from prophet_scheduler.policies.algorithms.generation import LEAST_SLACK_S, distinct_times
from prophet_scheduler.policies.algorithms.grouped import ONE_TASK

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
            # From the first that is generated to gradient 0. Nothing waits for the first: all else is gone by then.
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
