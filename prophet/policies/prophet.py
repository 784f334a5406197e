"""Prophet (Zhang et al., ICPP 2021): forward order, a credit that is measured, and the stepwise pattern.

Rule of this file: the online form of Algorithm 1 as a plan for the queue; the algorithm as the paper
writes it is in prophet/assembler.py.

The paper assembles a block: it adds the most urgent ready gradient as long as its transfer ends before
a more urgent one is generated. The queue makes the same decision each time the wire takes another
partition, with what it knows by then, so a block ends where reality does and not where the profile said.
"""

from __future__ import annotations

from prophet.model import Deadline, Network, Plan, Profile, QueuePlan
from prophet.policies.order import forward_order

PARTITIONS_IN_FLIGHT = 2
"""One being acknowledged while the next is on the wire: the least that keeps a wire busy."""


class Prophet:
    """Nothing to tune: the credit follows from the measured rate and acknowledgement delay."""

    name = "prophet"

    def __init__(self, partition_bytes: int) -> None:
        self._partition_bytes = partition_bytes

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        order = forward_order(profile)
        credit = self.credit(network)
        deadlines: tuple[Deadline, ...] = ()
        if profile is not None and network is not None:
            deadlines = self.deadlines(profile, network)
        return Plan(
            push=QueuePlan(order=order, credit=credit, deadlines=deadlines),
            # Pulls follow the pushes in the same order, and the server answers them as keys complete. A
            # credit on them idles the downlink whenever another worker is late with an urgent key.
            pull=QueuePlan(order=order),
            generation_s=_by_id(profile) if deadlines else {},
            network=network,
            deadline_slack_s=jitter_s,
            policy=self.name,
        )

    def credit(self, network: Network | None) -> int:
        """Bytes in flight that keep the wire busy and delay an urgent gradient the least.

        While one partition is on the wire, the acknowledgement of the one before must come back: rate
        times delay, and not less than two partitions. Everything above that only queues ahead
        of gradients that may be more urgent.
        """
        least = PARTITIONS_IN_FLIGHT * self._partition_bytes
        if network is None:
            return 2 * least
        in_delay = network.bandwidth * (network.ack_delay_s + network.overhead_s)
        return max(least, self._partition_bytes + int(in_delay))

    def deadlines(self, profile: Profile, network: Network) -> tuple[Deadline, ...]:
        """When gradient 0 is predicted: the transfer before it must have ended (constraint 11).

        The paper applies constraint 11 to every gradient. On the wire of a job that is bound by its
        network, each hold leaves the wire idle for up to a partition, and only gradient 0's delay is paid
        for at once: the others are not needed before it. So only its deadline is kept.
        """
        if profile.backward_s <= profile.gradients[-1].generation_s:
            return ()  # one step: nothing comes before gradient 0
        return (Deadline(profile.backward_s, 0),)


def _by_id(profile: Profile | None) -> dict[int, float]:
    if profile is None:
        return {}
    return {i: g.generation_s for i, g in zip(profile.gradient_ids, profile.gradients, strict=True)}
