"""The cut of a job whose iterations wait for all averages: what is generated together travels together.

Rule of this file: pure functions of a profile and a network. Times are seconds, sizes bytes.

No order helps such a job, and all that counts is when the last average is back. So the wire must have something to do
from the first gradient on, and each block must be there when the wire is free for it. Blocks of one size cannot do
both: small ones are many messages, and the first of the large ones waits for gradients that come later. MG-WFBP (Shi,
Chu and Li, INFOCOM 2019) merges neighbours for the same end, with a message of s bytes taking E(s) = overhead + s /
bandwidth; prophet_papers/mg_wfbp.py has their algorithm and the best merging. Here it is the fewest messages that end
in time, for a backward pass that may be late: in a merging that is the best for the learned times, every message is
there just when it is to leave.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, MOST_SEGMENTS, UNIT_BYTES, Cut, Segment, arena_places
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile

LATE = 0.1
"""Share by which a backward pass may be later than it was learned."""
EXACT = 1e-3
"""Relative error of the earliest end."""


def merged_cut(profile: Profile, network: Network, message_s: float = 0.0, jitter_s: float = 0.0) -> Cut:
    """Return the cut with the fewest blocks whose last average is back as early as that of any.

    `profile` is of what makes up the arena, with ids that rise with the place; new blocks begin where some of it does.
    `message_s`: what a message costs besides the network's overhead. `jitter_s`: how far generation times scatter.
    """
    rows = sorted(zip(profile.gradient_ids, profile.gradients, strict=True), key=lambda row: row[0])
    known = [gradient for _, gradient in rows]
    sizes = [gradient.size_bytes for gradient in known]
    *places, total_bytes = arena_places(sizes)
    # A block is there when all of it is, so what lies behind a late one in the arena counts as no later than that.
    rising = itertools.accumulate((gradient.generation_s for gradient in reversed(known)), max)
    ready_s = [(1 + LATE) * time_s + jitter_s for time_s in rising][::-1]
    firsts = fewest_groups(ready_s, sizes, network, message_s)
    firsts = firsts[:: -(-len(firsts) // MOST_SEGMENTS)]
    # The next place at which a segment may start: what is there early must have no part of what comes later.
    starts = dict.fromkeys(-(-places[first] // UNIT_BYTES) * UNIT_BYTES for first in firsts)
    borders = [*(start for start in starts if start < total_bytes), total_bytes]
    return Cut(tuple(Segment(start, _equal_parts(end - start)) for start, end in itertools.pairwise(borders)))


def fewest_groups(
    ready_s: Sequence[float], sizes: Sequence[int], network: Network, message_s: float = 0.0
) -> list[int]:
    """Return the first places of the groups of neighbours: the fewest among those that end the earliest.

    `ready_s` (never rising) and `sizes` are by place; groups travel one after another, the last place first, each when
    all of it is ready and the one before has ended, and takes E(s) and `message_s`.
    """
    least_s, most_s = 0.0, ready_s[0] + message_s + network.transfer_s(sum(sizes))
    groups = [0]
    while most_s - least_s > EXACT * most_s:
        middle_s = (least_s + most_s) / 2
        found = _groups_by(middle_s, ready_s, sizes, network, message_s)
        if found is None:
            least_s = middle_s
        else:
            groups, most_s = found, middle_s
    return groups


def _groups_by(
    end_s: float, ready_s: Sequence[float], sizes: Sequence[int], network: Network, message_s: float
) -> list[int] | None:
    """Return the fewest groups that end by then; None if there are none. From the last one on each is as large as
    possible: its members leave those before it less to carry, by as much as they leave them less time.
    """
    places = arena_places(sizes)
    each_s = network.overhead_s + message_s
    firsts: list[int] = []
    first = 0
    while first < len(sizes):
        room = (end_s - ready_s[first] - each_s) * network.bandwidth
        after = bisect.bisect_right(places, places[first] + room) - 1
        if after <= first:
            return None
        firsts.append(first)
        end_s -= each_s + (places[after] - places[first]) / network.bandwidth
        first = after
    return firsts


def _equal_parts(size_bytes: int) -> int:
    """Return the size of the fewest blocks that make up so much, all about as large.

    A block may begin a little before its segment, where a gradient does (core/cut.py).
    """
    parts = -(-size_bytes // (MOST_BLOCK_BYTES - UNIT_BYTES))
    return (-(-size_bytes // parts // UNIT_BYTES) + 1) * UNIT_BYTES
