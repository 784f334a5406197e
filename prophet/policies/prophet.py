"""Prophet (Zhang et al., ICPP 2021): forward order, a credit that is measured, and the stepwise pattern.

Rule of this file: the online form of Algorithm 1 as a plan for the queue; the algorithm as the paper
writes it is in prophet/assembler.py.

The paper assembles a block: it adds the most urgent ready gradient as long as its transfer ends before
a more urgent one is generated. The queue makes the same decision each time the wire takes another
partition, with what it knows by then, so a block ends where reality does and not where the profile said.
"""

from __future__ import annotations

import math

from prophet.bound import completion_times, forward_remaining
from prophet.model import Deadline, Network, Plan, Profile, QueuePlan
from prophet.policies.order import forward_order
from prophet.profiler import find_steps

UNMEASURED_PARTITIONS = 8
"""In flight until the network is known: enough for most, and 1 MiB with the default partition."""


class Prophet:
    """Nothing to tune: credit and deadline follow from what is measured. `partition_bytes` is BytePS's."""

    name = "prophet"

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = forward_order(profile)
        deadlines: tuple[Deadline, ...] = ()
        if profile is not None and network is not None:
            deadlines = self.deadlines(profile, network, jitter_s)
        return Plan(
            push=QueuePlan(order=order, credit=self.credit(network), deadlines=deadlines),
            # Pulls follow the pushes in the same order, and the server answers them as keys complete. A
            # credit on them idles the downlink whenever another worker is late with an urgent key.
            pull=QueuePlan(order=order),
            generation_s=_generation(profile) if profile is not None and deadlines else {},
            network=network,
            deadline_slack_s=jitter_s,
            policy=self.name,
        )

    def credit(self, network: Network | None) -> int:
        """Bytes in flight that keep the wire busy and delay an urgent gradient the least.

        With W partitions in flight, one that leaves the wire is replaced when its acknowledgement comes, so
        the wire stays busy while W - 1 others take at least that long: W = 1 + delay / E(partition). One more
        covers acknowledgements that are later than the delay says. Everything above that would only queue
        ahead of gradients that may be more urgent.
        """
        if network is None:
            return UNMEASURED_PARTITIONS * self._partition_bytes
        in_delay = math.ceil(network.ack_delay_s / network.transfer_s(self._partition_bytes))
        return (2 + in_delay) * self._partition_bytes

    def deadlines(self, profile: Profile, network: Network, jitter_s: float = 0.0) -> tuple[Deadline, ...]:
        """When the last step of backward is predicted, if it pays to have the wire free by then.

        The paper applies constraint 11 before every step. A hold costs the wire up to one partition and the
        error of the prediction; without it the step waits for what is in flight. Both matter only where they
        exceed the slack against the least iteration time (prophet/bound.py). A step before the last has the
        slack of all the steps after it, so a hold would be a loss there, and only the last is considered.
        """
        steps = find_steps(profile)
        if len(steps) < 2:
            return ()  # nothing comes before it
        last = steps[0].last
        ends = [
            done + forward
            for done, forward in zip(
                completion_times(profile, network.bandwidth), forward_remaining(profile), strict=True
            )
        ]
        bound = max(ends)
        late_s = self.credit(network) / network.bandwidth - (bound - max(ends[: last + 1]))
        idle_s = network.transfer_s(self._partition_bytes) + jitter_s - (bound - max(ends[last + 1 :]))
        if late_s <= max(0.0, idle_s):
            return ()
        return (Deadline(profile.gradients[last].generation_s, last),)


def _generation(profile: Profile) -> dict[int, float]:
    return {i: g.generation_s for i, g in zip(profile.gradient_ids, profile.gradients, strict=True)}
