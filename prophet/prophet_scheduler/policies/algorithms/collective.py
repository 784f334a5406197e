"""Blocks and their order for an engine of collectives: predicted with sequences instead of a cluster of servers.

Rule of this file: pure code. The session decides when to try which cut, as on a parameter server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from prophet_scheduler.core.arena import profile_under
from prophet_scheduler.core.choice import Choice, Measured, Question
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.chooser import SIZES as SERVED_SIZES
from prophet_scheduler.policies.algorithms.chooser import ranked
from prophet_scheduler.policies.algorithms.merging import merged_cut
from prophet_scheduler.policies.algorithms.sequence import iteration_s, make_sequence, more_trips_s

SIZES = (*SERVED_SIZES, 8 << 20, 16 << 20, 32 << 20, 64 << 20, 128 << 20)
"""Block sizes of uniform cuts. With many ranks or a fast network the fixed cost of a collective asks for large ones."""
LEAST_SIZE = 128 << 10
"""Minimum size of blocks to try: a collective occupies threads on all ranks for a good part of a millisecond."""
LEAST_OVERHEAD_S = 0.2e-3
"""Minimum cost of a collective besides its bytes, on the wire and again in the main thread of each rank. Measured with
gloo: 0.18 ms in the main thread, 0.59 ms in all threads (25.6 MB, 500 Mbit/s, blocks of 128 KiB and 1 MiB)."""
PROCESSOR_S = 0.8e-3
"""Processor time of a collective on each rank of a small job: measured with gloo on two cores, with 1.6 MB per
iteration in one, two and four blocks. In larger jobs the wire's measured costs contain most of it."""
IN_FLIGHT = 2
"""Blocks in flight; one more would cost as much as preemption is worth."""
UNEXPLAINED = 0.05
"""Relative excess over the prediction above which messages are held to explain it: if ranks share processors, messages
slow down computing, and nothing on the wire shows it."""
MOST_MESSAGE_S = 5e-3
"""Maximum cost of a message that is inferred in this way."""
EVENTS_A_BLOCK = 10
"""Cost of playing one block to the queue, in simulated events, the unit of a search."""


class CollectivePolicy:
    """A policy with the order from the plans of `policy`, and blocks of the best predicted size.

    `at_barrier`: gives the order if every iteration waits for all averages; None to use `policy` then, too.
    `learns_order`: forward order is learned where it differs from the order of places (learn/ranks.py).
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
        """Return the plan; with a `barrier`, iterations wait for all averages."""
        policy = self._at_barrier if barrier else self._policy
        return replace(policy.plan(profile, network, jitter_s), cut=None)

    def search(self, question: Question) -> CollectiveSearch:
        return CollectiveSearch(self, question)

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        """Return the plan with the cut of this choice, and the order of its blocks."""
        profile = profile_under(question.profile, choice.cut)
        plan = self.ordered(profile, question.network, question.jitter_s, barrier=question.barrier)
        return replace(plan, push=replace(plan.push, credit=choice.credit), cut=choice.cut)


class CollectiveSearch:
    """Search over uniform cuts; if iterations wait for all averages, one cut made for the pattern instead."""

    message_s = None

    def __init__(self, policy: CollectivePolicy, question: Question) -> None:
        self._policy = policy
        self._question = question
        network = question.network
        total = question.profile.total_bytes
        self._network = replace(network, overhead_s=max(network.overhead_s, LEAST_OVERHEAD_S))
        self._message_s = PROCESSOR_S if total <= MOST_BLOCK_BYTES else LEAST_OVERHEAD_S
        self._message_s += self._message_besides_s(question.measured)
        cuts = list(question.cuts)
        if question.anew:
            # The smallest size that puts all gradients into one block; larger ones would give the same block.
            least_whole = next((size for size in SIZES if size >= max(total, LEAST_SIZE)), SIZES[-1])
            if question.barrier:
                cuts.append(merged_cut(question.profile, self._network, self._message_s, question.jitter_s))
            else:
                cuts += [Cut.uniform(size) for size in SIZES if LEAST_SIZE <= size <= least_whole]
        self._cuts = list(dict.fromkeys(cuts))
        self._done: list[Choice] = []

    def work(self, events: int) -> bool:
        """Judge some cuts. Return True once all are judged."""
        while self._cuts and events > 0:
            choice, cost = self._judge(self._cuts.pop(0))
            self._done.append(choice)
            events -= cost
        return not self._cuts

    @property
    def choices(self) -> Sequence[Choice]:
        """Choices, best first; among equals those with the largest blocks, and therefore fewest messages, first."""
        return ranked(self._done, self._question.profile.total_bytes)

    def _message_besides_s(self, measured: Measured | None) -> float:
        """Return the additional cost of a message, if the job's present iterations take longer than predicted."""
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
        size_bytes = cut.typical_bytes(profile.total_bytes)
        more_s = more_trips_s(size_bytes, self._network, question.shape.workers)
        network = replace(self._network, ack_delay_s=self._network.ack_delay_s + more_s)
        sequence = make_sequence(profile, network, plan)
        predicted_s = iteration_s(profile, sequence, question.barrier) + self._message_s * len(profile.gradients)
        return Choice(cut, IN_FLIGHT * size_bytes, predicted_s), EVENTS_A_BLOCK * len(profile.gradients)


class ForwardOrder:
    """Forward order: the gradients that forward needs first are sent first."""

    name = "prophet"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return a plan of forward order without deadlines: an agreed sequence has no times to wait for."""
        return Plan(push=QueuePlan(order=profile.rank_by_id if profile else {}), policy=self.name)


class ArrivalOrder:
    """Order of generation, for iterations that wait for all averages.

    With such a barrier, no other order of these blocks has the last average back earlier.
    """

    name = "prophet"

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """Return a plan without an order, which means arrival order."""
        return Plan(policy=self.name)
