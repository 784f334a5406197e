"""Prophet (Zhang et al., ICPP 2021): forward order, blocks and credit chosen by prediction, and the stepwise pattern.

Rule of this file: the online form of Algorithm 1 as a plan for the queue; the algorithm as the paper
writes it is in prophet/policies/algorithms/assembler.py, the search for the best blocks in algorithms/chooser.py.

The paper assembles a block: it adds the most urgent ready gradient as long as its transfer ends before
a more urgent one is generated. Here that is two decisions. Where blocks begin and end, and how many bytes are in
flight, is chosen by predicting the iteration. And the queue decides each time the wire takes another block, with what
it knows by then, so what travels together ends where reality does and not where the profile said.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from prophet.core.plan import Deadline, Plan, QueuePlan
from prophet.policies import Blocks, Definition

if TYPE_CHECKING:
    from prophet.core.choice import Choice, Question, Search
    from prophet.core.network import Network
    from prophet.core.profile import Profile

UNMEASURED_BYTES = 2 << 20
"""In flight until the network is known: two of the largest blocks that a job begins with. It is measured best while
pushes follow one another without a pause."""


class Prophet:
    """Nothing to tune: blocks, credit and deadline follow from what is measured.

    `partition_bytes` is the size of blocks where nothing better is known.
    """

    name = "prophet"

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """What can be said without the shape of the cluster: the cut stays, the credit covers the delay."""
        deadlines: tuple[Deadline, ...] = ()
        if profile is not None and network is not None:
            deadlines = self.deadlines(profile, network, jitter_s)
        return self._plan(profile, network, self.credit(network), deadlines, jitter_s)

    def search(self, question: Question) -> Search:
        """Looks for the cut and the credit with the shortest iteration."""
        from prophet.policies.algorithms.chooser import ChoiceSearch

        return ChoiceSearch(question, lambda choice: self._held(choice, question))

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        """The plan of a choice; its deadlines hold under the cut that it asks for."""
        held = self._held(choice, question) if choice.deadlines else None
        if held is not None:
            return held
        return self._plan(question.profile, question.network, choice.credit, (), question.jitter_s, choice)

    def _held(self, choice: Choice, question: Question) -> Plan | None:
        """The plan of a choice with what is less urgent held back when the last step is due; None with one step."""
        from prophet.core.arena import profile_under
        from prophet.core.steps import find_steps

        under = question.profile if not question.arena else profile_under(question.profile, choice.cut)
        steps = find_steps(under)
        if len(steps) < 2:
            return None
        deadlines = (Deadline(under.backward_s, _rank(under, steps[0].last)),)
        return self._plan(under, question.network, choice.credit, deadlines, question.jitter_s, choice)

    def _plan(
        self,
        profile: Profile | None,
        network: Network | None,
        credit: int,
        deadlines: tuple[Deadline, ...],
        jitter_s: float,
        choice: Choice | None = None,
    ) -> Plan:
        # Ids that rise in forward order are ranks themselves, under any cut.
        order = {} if profile is None or _forward_ids(profile) else profile.rank_by_id
        return Plan(
            push=QueuePlan(order=order, credit=credit, deadlines=deadlines),
            # Pulls follow the pushes in the same order, and the server answers them as keys complete. A
            # credit on them idles the downlink whenever another worker is late with an urgent key.
            pull=QueuePlan(order=order),
            generation_s=_generation(profile) if profile is not None and deadlines else {},
            network=network,
            deadline_slack_s=jitter_s,
            policy=self.name,
            cut=choice.cut if choice is not None else None,
        )

    def credit(self, network: Network | None) -> int:
        """Bytes in flight that keep the wire busy, and no more: what queues on it delays the more urgent.

        With W partitions in flight, one that leaves the wire is replaced when its acknowledgement comes, so
        the wire stays busy while W - 1 others take at least that long. W is a whole number: a part of a partition lets
        only small gradients in, which take little time and still wait for their acknowledgements. The delay is that
        of an idle network. A credit for the delay of a busy one would feed itself: acknowledgements wait behind
        pulls, and more in flight means more of those.
        """
        if network is None:
            return max(UNMEASURED_BYTES, self._partition_bytes)
        others = math.ceil(network.ack_delay_s / network.transfer_s(self._partition_bytes))
        return (1 + max(1, others)) * self._partition_bytes

    def deadlines(self, profile: Profile, network: Network, jitter_s: float = 0.0) -> tuple[Deadline, ...]:
        """When gradient 0 is predicted, if it pays to have less urgent steps off the wire by then.

        The paper applies constraint 11 before every gradient. A hold costs the wire up to one partition and the
        error of the prediction; without it the last step waits for what is in flight. Both matter only where
        they exceed the slack against the least iteration time (prophet/core/bound.py). A step before the
        last has the slack of all the steps after it, so a hold would be a loss there. And within the last step
        a hold would only leave the wire idle, so its own gradients are free to go.
        """
        # Not before there is a profile: until then a job needs neither.
        from prophet.core.bound import completion_times, forward_remaining
        from prophet.core.steps import find_steps

        steps = find_steps(profile)
        if len(steps) < 2:
            return ()  # nothing comes before it
        last = steps[0].last
        transfers_s = [
            math.ceil(g.size_bytes / self._partition_bytes) * network.overhead_s + g.size_bytes / network.bandwidth
            for g in profile.gradients
        ]
        done = completion_times(profile, transfers_s)
        ends = [u + forward for u, forward in zip(done, forward_remaining(profile), strict=True)]
        slack_s = max(ends) - max(ends[: last + 1])
        others_slack_s = max(ends) - max(ends[last + 1 :])
        late_s = self.credit(network) / network.bandwidth - slack_s
        idle_s = network.transfer_s(self._partition_bytes) + jitter_s - others_slack_s
        if late_s <= max(0.0, idle_s):
            return ()
        return (Deadline(profile.backward_s, _rank(profile, last)),)


def _forward_ids(profile: Profile) -> bool:
    return all(a < b for a, b in itertools.pairwise(profile.gradient_ids))


def _rank(profile: Profile, place: int) -> int:
    """The rank in a plan of the gradient at a place of the profile."""
    return profile.gradient_ids[place] if _forward_ids(profile) else place


def _generation(profile: Profile) -> dict[int, float]:
    """By gradient id. Only gradient 0 is given its own time, so that none of its step seems to be it."""
    before = math.nextafter(profile.backward_s, 0.0)
    times = [profile.backward_s, *(min(g.generation_s, before) for g in profile.gradients[1:])]
    return dict(zip(profile.gradient_ids, times, strict=True))


POLICIES = {
    "prophet": Definition(
        "learns the job's gradient pattern and the network, and plans from them",
        lambda options, partition_bytes: Prophet(partition_bytes),
        blocks=Blocks.ADAPTIVE,
    )
}
