"""The cut of a job whose iterations wait for all averages: gradients generated together travel together.

Rule of this file: pure functions of a profile and a network. Times are in seconds, sizes in bytes.

No order helps such a job: only the arrival of the last average counts. So the wire must be busy from the first gradient
on, and each block must be ready when the wire is free. Blocks of one size cannot achieve both: small blocks mean many
messages, and the first large block waits for later gradients. MG-WFBP (Shi, Chu and Li, INFOCOM 2019) merges neighbours
for the same purpose, with a message of s bytes taking E(s) = overhead + s / bandwidth; prophet_papers/mg_wfbp.py has
their algorithm and the best merging. Here the goal is the fewest messages that end in time even if backward is late: in
the best merging for the learned times, each message would be ready only just when it has to be sent.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from prophet_scheduler.core.cut import MOST_SEGMENT_BYTES, MOST_SEGMENTS, UNIT_BYTES, Cut, Segment, arena_places
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile

LATE = 0.1
"""Share by which a backward pass may be later than learned."""
EXACT = 1e-3
"""Relative tolerance of the earliest end."""


def merged_cut(profile: Profile, network: Network, message_s: float = 0.0, jitter_s: float = 0.0) -> Cut:
    """Return the cut with the fewest blocks among those whose last average is back the earliest.

    `profile` has the parts of the arena, with ids that rise with the place; a new block begins where a part begins.
    `message_s`: cost of a message besides the network's overhead. `jitter_s`: scatter of generation times.
    """
    rows = sorted(zip(profile.gradient_ids, profile.gradients, strict=True), key=lambda row: row[0])
    known = [gradient for _, gradient in rows]
    sizes = [gradient.size_bytes for gradient in known]
    *places, total_bytes = arena_places(sizes)
    # A block is ready when all of it is, so a gradient counts as ready no earlier than those behind it in the arena.
    rising = itertools.accumulate((gradient.generation_s for gradient in reversed(known)), max)
    ready_s = [(1 + LATE) * time_s + jitter_s for time_s in rising][::-1]
    firsts = fewest_groups(ready_s, sizes, network, message_s)
    firsts = firsts[:: -(-len(firsts) // MOST_SEGMENTS)]
    # Round up to a place where a segment may start: an early block must contain no part of a later gradient.
    starts = dict.fromkeys(-(-places[first] // UNIT_BYTES) * UNIT_BYTES for first in firsts)
    borders = [*(start for start in starts if start < total_bytes), total_bytes]
    return Cut(tuple(Segment(start, _equal_parts(end - start)) for start, end in itertools.pairwise(borders)))


def fewest_groups(
    ready_s: Sequence[float], sizes: Sequence[int], network: Network, message_s: float = 0.0
) -> list[int]:
    """Return the first index of each group of neighbours, for the fewest groups among those that end the earliest.

    `ready_s` (never rising) and `sizes` are by index. Groups travel one after another, the last index first. Each
    starts when all of it is ready and the previous group has ended, and takes E(s) + `message_s`.
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
    """Return the fewest groups that end by `end_s`; None if impossible. Starting with the group to travel last, each is
    as large as possible: its members relieve the earlier groups of as much work as they take from their time.
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
    """Return the block size that divides `size_bytes` into the fewest blocks of about equal size.

    A block may begin slightly before its segment, where a gradient begins (core/cut.py).
    """
    parts = -(-size_bytes // (MOST_SEGMENT_BYTES - UNIT_BYTES))
    return (-(-size_bytes // parts // UNIT_BYTES) + 1) * UNIT_BYTES
