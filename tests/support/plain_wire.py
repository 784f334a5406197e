"""A plain model of collectives on a wire: oracle of the simulator's core, and network of jobs on a virtual clock.

Rule of this file: it shares no code with the simulator. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.sequence import MOST_AT_ONCE, IssueOrder, operations_at_once


def played(profile: Profile, network: Network, order: Sequence[int]) -> IssueOrder:
    """Return the times of this order: each is issued once it is there, those before it are, and there is room.

    An operation travels when its delay is over and the one before it is back.
    """
    at_once = operations_at_once(network, profile.total_bytes / len(profile.gradients), MOST_AT_ONCE)
    under_way: deque[float] = deque([0.0] * at_once, at_once)
    ends_s = [0.0] * len(profile.gradients)
    now = 0.0
    for place in order:
        gradient = profile.gradients[place]
        now = max(now, gradient.generation_s)
        begin_s = max(max(now, under_way[0]) + network.ack_delay_s, under_way[-1])
        ends_s[place] = begin_s + network.transfer_s(gradient.size_bytes)
        under_way.append(ends_s[place])
    return IssueOrder(tuple(order), tuple(ends_s))
