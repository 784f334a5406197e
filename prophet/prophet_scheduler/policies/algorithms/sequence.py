"""One order of blocks for all ranks, and its times: collectives on a virtual clock.

Rule of this file: pure functions of a profile, a network and a plan. Times are seconds, sizes bytes.

Engines of collectives match operations by the order in which they are issued, so that order must be the same on all
ranks. It cannot follow from what is ready on each of them, but has to be known before the iteration begins: it is what
the queue decides when the learned pattern is played to it on a virtual clock, a block at a time, each taking
E(s) = overhead + s / bandwidth (paper, Eq. 10), and the acknowledgement's delay besides where the wire was idle before
it: enough are under way at once that the delays of others pass meanwhile. Preemption is between blocks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.queue import TwoLaneQueue


@dataclass(frozen=True)
class IssueOrder:
    """`order` has the places of all gradients of a profile in the order in which they are issued.

    `ends_s`, by place, is when each is back, in seconds since backward began.
    """

    order: tuple[int, ...]
    ends_s: tuple[float, ...]


def backward_order(count: int) -> tuple[int, ...]:
    """Return the order while nothing is known of a job: the last gradient first, as backward generates them."""
    return tuple(reversed(range(count)))


def make_sequence(profile: Profile, network: Network, plan: Plan) -> IssueOrder:
    """Return the order of a queue with this plan if the gradients of `profile`, each a block, come at their times."""
    queue = TwoLaneQueue(watchdog_s=float("inf"))
    queue.set_plan(replace(plan, push=replace(plan.push, credit=1)))
    gradients = profile.gradients
    ids = profile.gradient_ids
    coming = sorted(range(len(gradients)), key=lambda place: (gradients[place].generation_s, -place))
    wire = _Wire(profile, network)
    ends_s = [0.0] * len(gradients)
    order: list[int] = []
    now, came = 0.0, 0
    while len(order) < len(gradients):
        now = max(now, wire.next_issue_s)
        while came < len(coming) and gradients[coming[came]].generation_s <= now:
            place = coming[came]
            queue.add(QueueKind.PUSH, place, ids[place], gradients[place].size_bytes, now)
            came += 1
        place_or_none, again_s = queue.get(QueueKind.PUSH, now)
        if place_or_none is None:
            # The queue waits for a deadline, or for the next gradient.
            next_s = gradients[coming[came]].generation_s if came < len(coming) else float("inf")
            now = min(next_s, again_s if again_s > now else float("inf"))
            if now == float("inf"):
                raise ValueError("the plan holds back gradients for ever")
            continue
        order.append(place_or_none)
        ends_s[place_or_none] = wire.carry(gradients[place_or_none].size_bytes, now)
        queue.finish(QueueKind.PUSH, place_or_none, now)
    return IssueOrder(tuple(order), tuple(ends_s))


TORCH_AT_ONCE = 2
"""Operations that a group of torch's own runs at once (gloo has two threads)."""
LEAST_AT_ONCE = 3
"""Operations of Prophet's group: one that travels, one behind it, and one that ends."""
MOST_AT_ONCE = 8
"""Maximum operations worth having under way at once."""
SPARE = 4 / 3
"""Margin with which the delay is hidden. Operations under way together may wait together, and with just enough of
them the wire idles now and then."""


def operations_at_once(network: Network, size_bytes: float, most: int) -> int:
    """Return the number of operations, up to `most`, whose delays the wire's work hides; each has this size."""
    travels_s = network.transfer_s(size_bytes)
    return max(LEAST_AT_ONCE, min(most, 1 + math.ceil(SPARE * network.ack_delay_s / travels_s)))


class _Wire:
    """Operations one after another, as many under way as operations_at_once says.

    Each travels when its delay is over and the one before it is back; one more is issued when there is room.
    """

    def __init__(self, profile: Profile, network: Network) -> None:
        self._network = network
        at_once = operations_at_once(network, profile.total_bytes / len(profile.gradients), MOST_AT_ONCE)
        self._ends_s: deque[float] = deque([0.0] * at_once, at_once)

    @property
    def next_issue_s(self) -> float:
        """Time at which the next one is issued for the wire to be busy, or at which there is room if that is later."""
        return max(self._ends_s[0], self._ends_s[-1] - self._network.ack_delay_s)

    def carry(self, size_bytes: int, ready_s: float) -> float:
        """Return the end of an operation that is issued when it is ready and there is room."""
        issue_s = max(ready_s, self._ends_s[0])
        begin_s = max(issue_s + self._network.ack_delay_s, self._ends_s[-1])
        self._ends_s.append(begin_s + self._network.transfer_s(size_bytes))
        return self._ends_s[-1]


def play_sequence(profile: Profile, network: Network, order: Sequence[int]) -> IssueOrder:
    """Return the times of this order: each is issued once it is there, those before it are, and there is room."""
    wire = _Wire(profile, network)
    ends_s = [0.0] * len(profile.gradients)
    now = 0.0
    for place in order:
        gradient = profile.gradients[place]
        now = max(now, gradient.generation_s)
        ends_s[place] = wire.carry(gradient.size_bytes, now)
    return IssueOrder(tuple(order), tuple(ends_s))


def iteration_s(profile: Profile, sequence: IssueOrder, barrier: bool = False) -> float:
    """Return seconds from the begin of backward to the end of the next forward pass, in which each layer waits for its
    gradient (paper, Eq. 3); with a `barrier` the first layer waits for all of them.
    """
    if barrier:
        return max(profile.backward_s, *sequence.ends_s) + profile.forward_s
    now = profile.backward_s
    for gradient, end_s in zip(profile.gradients, sequence.ends_s, strict=True):
        now = max(now, end_s) + gradient.forward_s
    return now
