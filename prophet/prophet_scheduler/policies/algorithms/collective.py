"""Blocks and their order for an engine of collectives: predicted with sequences instead of a cluster of servers.

Rule of this file: pure. Which cut is tried when is learn's, as on a parameter server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Choice, Measured, Question
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, sizes_in_turn
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.chooser import SIZES, ranked
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE, iteration_s, make_sequence

LEAST_SIZE = 128 << 10
"""Minimum size of blocks to try: a collective takes threads of all ranks, a good part of a millisecond."""
LEAST_OVERHEAD_S = 0.2e-3
"""Minimum cost of a collective besides its bytes, whatever was measured of larger ones."""
PROCESSOR_S = 0.8e-3
"""Processor time of a collective on each rank of a small job: measured with gloo on two cores, 1.6 MB an iteration in
one block, two and four. Jobs whose gradients do not fit into one block have none added: there the measured costs of the
wire contain it."""
IN_FLIGHT = 2
"""Blocks in flight; one more would cost as much as preemption is worth."""
UNEXPLAINED = 0.05
"""Share beyond which an iteration longer than predicted is explained by messages: if ranks share processors, messages
lengthen computing, and nothing on the wire shows it."""
MOST_MESSAGE_S = 5e-3
"""Maximum of this for each message."""
LEARNING_BLOCKS = 64
"""Number of the smallest first blocks that make up the arena: a recut costs little here, so they need not be small."""
LEAST_LEARNING_BLOCKS = 2 * MOST_AT_ONCE
LEARNING_DELAY_S = 0.2
"""Sum of the delays of those first blocks that are under way together."""
EVENTS_A_BLOCK = 10
"""Work of playing one block to the queue, in events of the simulator's core, the unit of a search."""


def learning_sizes(total_bytes: int, delay_s: float = 0.0) -> tuple[int, ...]:
    """Return the sizes of a job's first blocks, in turn along the arena (learning_cut), for gradients of so many bytes.

    The largest is eight times the smallest, so that the cost of a message is told from that of its bytes. `delay_s` is
    the delay of each, during which others may be under way.
    """
    most = MOST_AT_ONCE * LEARNING_DELAY_S / max(delay_s, 1e-6)
    return sizes_in_turn(total_bytes, int(max(LEAST_LEARNING_BLOCKS, min(most, LEARNING_BLOCKS))), largest=8)


class CollectivePolicy:
    """`policy`, whose plans give the order, with blocks of the size that is predicted to be the best.

    `at_barrier` gives the order where every iteration waits for all averages; None for the same as always.
    `learns_order`: which gradients forward needs first is learned where it is not the order of their places
    (learn/ranks.py).
    """

    def __init__(self, policy: Policy, at_barrier: Policy | None = None) -> None:
        self.name = policy.name
        self.learns_order = isinstance(policy, ForwardOrder)
        self._policy = policy
        self._at_barrier = at_barrier or policy

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        return self.ordered(profile, network, jitter_s, barrier=False)

    def ordered(
        self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0, *, barrier: bool
    ) -> Plan:
        """Return the plan of a job whose iterations wait for all averages, or do not."""
        policy = self._at_barrier if barrier else self._policy
        return replace(policy.plan(profile, network, jitter_s), cut=None)

    def search(self, question: Question) -> CollectiveSearch:
        return CollectiveSearch(self, question)

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        """Return the plan with the order of the blocks of this choice, and its cut."""
        profile = profile_under(question.profile, choice.cut)
        plan = self.ordered(profile, question.network, question.jitter_s, barrier=question.barrier)
        return replace(plan, push=replace(plan.push, credit=choice.credit), cut=choice.cut)


class CollectiveSearch:
    """Uniform cuts, one after another; where iterations wait for all averages, one that is made for the pattern."""

    message_s = None

    def __init__(self, policy: CollectivePolicy, question: Question) -> None:
        self._policy = policy
        self._question = question
        network = question.network
        total = question.profile.total_bytes
        self._network = replace(network, overhead_s=max(network.overhead_s, LEAST_OVERHEAD_S))
        self._message_s = PROCESSOR_S if total <= MOST_BLOCK_BYTES else 0.0
        self._message_s += self._message_besides_s(question.measured)
        cuts = list(question.cuts)
        if question.anew:
            # Of those in which all gradients are one block, the first: others would be the same blocks again.
            least_whole = next((size for size in SIZES if size >= max(total, LEAST_SIZE)), SIZES[-1])
            if question.barrier:
                from prophet_scheduler.policies.algorithms.merging import (
                    merged_cut,  # Few jobs need it, and only one rank.
                )

                cuts.append(merged_cut(question.profile, self._network, self._message_s, question.jitter_s))
            else:
                cuts += [Cut.uniform(size) for size in SIZES if LEAST_SIZE <= size <= least_whole]
        self._cuts = list(dict.fromkeys(cuts))
        self._done: list[Choice] = []

    def work(self, events: int) -> bool:
        """Judge some cuts. Return True once all have been judged."""
        while self._cuts and events > 0:
            choice, cost = self._judge(self._cuts.pop(0))
            self._done.append(choice)
            events -= cost
        return not self._cuts

    @property
    def choices(self) -> Sequence[Choice]:
        """The best first; of those as good as it the one with the largest blocks, whose messages are the fewest."""
        return ranked(self._done, self._question.profile.total_bytes)

    def _message_besides_s(self, measured: Measured | None) -> float:
        """Return the further cost of a message, if the job's present iterations take longer than predicted."""
        if measured is None:
            return 0.0
        predicted, _ = self._judge(measured.cut)
        count = len(profile_under(self._question.profile, measured.cut).gradients)
        longer_s = measured.iteration_s - predicted.iteration_s
        return min(longer_s / count, MOST_MESSAGE_S) if longer_s > UNEXPLAINED * predicted.iteration_s else 0.0

    def _judge(self, cut: Cut) -> tuple[Choice, int]:
        question = self._question
        profile = profile_under(question.profile, cut)
        plan = self._policy.ordered(profile, question.network, question.jitter_s, barrier=question.barrier)
        sequence = make_sequence(profile, self._network, plan)
        predicted_s = iteration_s(profile, sequence, question.barrier) + self._message_s * len(profile.gradients)
        credit = IN_FLIGHT * cut.typical_bytes(profile.total_bytes)
        return Choice(cut, credit, predicted_s), EVENTS_A_BLOCK * len(profile.gradients)


class ForwardOrder:
    """Forward order: the gradients that forward needs first go first."""

    name = "prophet"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return forward order without deadlines: an agreed sequence has no moments to wait for."""
        return Plan(push=QueuePlan(order=profile.rank_by_id if profile else {}), policy=self.name)


class ArrivalOrder:
    """Order of generation, for iterations that wait for all averages.

    Then the last average is back no later than in any other order of these blocks.
    """

    name = "prophet"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return the plan without an order: that of arrival."""
        return Plan(policy=self.name)
