"""Balanced fusion: which all-reduces travel as one, by the paper's section V.

Rule of this file: partitions of a chain, the search for their number, and the fused graph. Sizes are bytes, times
seconds. The schedule of schedule.py is the oracle that judges a partition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet_papers.algorithms.pace.problem import Problem, TimedTransfer, problem_of
from prophet_papers.algorithms.pace.schedule import (
    WireSegment,
    iteration_time,
    least_time,
    least_time_of_chain,
    preemptive_schedule,
    rises,
)
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.core.network import Network

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""A partition is better if it is so by more than this share: sums of seconds in another order differ by less."""

EVERY_UP_TO = 200
"""Every R below this is judged, in any graph. The models of the paper have 164 transfers at most."""


@dataclass(frozen=True)
class Partition:
    """A chain cut into groups that begin at the places `starts` (the first is 0); the smallest has `least_bytes`."""

    starts: tuple[int, ...]
    least_bytes: int


def balanced_partitions(sizes: Sequence[int]) -> Iterator[Partition]:
    """Return for R = 1, 2, ... groups the partition whose smallest group is as large as can be: the paper's MaxMinSize.

    Algorithm 1, lines 11-23: with best(s, R) for the part of the chain from place s on,

        best(s, R) = max over c > s of min(bytes from s to c, best(c, R - 1)),

    and of equally good partitions the one with the shorter first group. The first term rises with c and the second does
    not, so the maximum is where they cross. That is a binary search for each s: O(n log n) for each R in place of the
    paper's O(n^2), and the same partitions. `sizes` are above 0. Raises UserError where there are none.
    """
    n = len(sizes)
    if n == 0 or min(sizes) <= 0:
        raise UserError("fusion needs at least one transfer, and each of more than 0 bytes")
    before = np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])  # bytes before each place
    best = before[-1] - before[:-1]  # best[s] with one group
    cuts: list[list[int]] = []  # cuts[R - 2][s]: where the second of R groups begins
    yield Partition((0,), int(best[0]))
    for groups in range(2, n + 1):
        # The first group begins at s <= n - groups, the second at c with s < c <= last.
        last = n - groups + 1
        rest = best[: last + 1]  # best[c] with groups - 1 groups
        first = np.arange(last)
        # Bytes from s to c reach rest[c] as soon as before[c] - rest[c] reaches before[s]; past `last` they always do.
        crossing = np.searchsorted(before[: last + 1] - rest, before[:last])
        earlier = np.minimum(crossing - 1, last)
        later = np.minimum(crossing, last)
        with_earlier = np.where(earlier > first, before[earlier] - before[:last], -1)
        with_later = np.minimum(before[later] - before[:last], rest[later])
        cut = np.where(with_earlier >= with_later, earlier, later)
        best = np.maximum(with_earlier, with_later)
        cuts.append(cut.tolist())
        starts = [0]
        for level in reversed(cuts):
            starts.append(level[starts[-1]])
        yield Partition(tuple(starts), int(best[0]))


@dataclass(frozen=True)
class Fusion:
    """Transfers to be sent: `groups` (names of transfers, in order of release) and when.

    `problem` has one transfer a group, in that order, `segments` its best schedule, and the iteration takes
    `iteration_s` seconds with it.
    """

    groups: tuple[tuple[str, ...], ...]
    problem: Problem
    segments: tuple[WireSegment, ...]
    iteration_s: float


class Chain:
    """The transfers of a graph in order of release, as arrays; what a partition of them is worth.

    Among equal releases the longer tail comes later, so that neighbours are about as urgent. `least_s`: no partition
    ends earlier. `rises`: what is released later is the more urgent too, as in a chain of layers.
    """

    def __init__(self, graph: Graph, network: Network) -> None:
        """Raises UserError for a graph that cannot be scheduled (`problem_of`)."""
        self._whole = problem_of(graph, network.transfer_s)
        chain = sorted(self._whole.transfers, key=lambda t: (t.release, t.tail))
        self.names = [transfer.name for transfer in chain]
        self.sizes = [graph[name].size_bytes for name in self.names]
        self.network = network
        self.release = np.array([transfer.release for transfer in chain])
        self.tail = np.array([transfer.tail for transfer in chain])
        self.rises = rises(self.tail)
        self._before = np.concatenate([[0], np.cumsum(np.asarray(self.sizes, dtype=np.int64))])
        self.bytes_left = self._before[-1] - self._before  # from each place on
        unfused = Network(network.bandwidth)
        self.least_s = least_time(problem_of(graph, unfused.transfer_s))

    def iteration_s(self, starts: Sequence[int]) -> float:
        """Return the end of the iteration with the best schedule of the groups that begin at these places."""
        release, length, tail = self._fused(starts)
        if self.rises:
            return max(self._whole.floor, least_time_of_chain(release, length, tail))
        rows = zip(release.tolist(), length.tolist(), tail.tolist(), strict=True)
        problem = Problem(self._whole.name, tuple(TimedTransfer("", *row) for row in rows), self._whole.floor)
        return iteration_time(problem, preemptive_schedule(problem))

    def never_before_s(self, groups: int) -> float:
        """No partition into so many groups ends earlier: all of them have to go before the least tail."""
        total_s = groups * self.network.overhead_s + self.bytes_left[0] / self.network.bandwidth
        return max(self.least_s, float(self.release[0] + total_s + self.tail.min()))

    def fusion(self, starts: Sequence[int]) -> Fusion:
        ends = (*starts[1:], len(self.names))
        groups = tuple(tuple(self.names[start:end]) for start, end in zip(starts, ends, strict=True))
        numbers = (array.tolist() for array in self._fused(starts))
        rows = zip(map(_name, groups), *numbers, strict=True)
        problem = Problem(self._whole.name, tuple(TimedTransfer(*row) for row in rows), self._whole.floor)
        segments = preemptive_schedule(problem)
        return Fusion(groups, problem, segments, iteration_time(problem, segments))

    def _fused(self, starts: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Releases, lengths and tails: a group is released with its last member, the longest tail of any follows it."""
        first = np.asarray(starts)
        ends = np.append(first[1:], len(self.names))
        sizes = self._before[ends] - self._before[first]
        length = self.network.overhead_s + sizes / self.network.bandwidth
        return self.release[ends - 1], length, np.maximum.reduceat(self.tail, first)


def balanced_fusion(graph: Graph, network: Network) -> Fusion:
    """Algorithm 1: the number of groups whose balanced partition has the shortest iteration, and its schedule.

    The chain is the transfers in order of release (Lemma 2). An all-reduce of s bytes takes `network.transfer_s(s)`,
    whose overhead is what fusion saves. The number R goes up from 1 to n as in the paper, but its stochastic search for
    large n is not needed: R groups never end before (first release) + R overheads + (all bytes) + (least tail), so once
    that exceeds the best iteration so far, all larger R are worse.

    O(n^2 log n) for n transfers where what is released later is the more urgent too, as in a chain of layers
    (`least_time_of_chain` is the oracle). Elsewhere each R takes a schedule, O(R log R) in Python; there, of the
    numbers from k times EVERY_UP_TO on, only every (k+1)-th is tried, and n. That is 0.6 s for 1,000 transfers.

    Raises UserError for a graph that cannot be scheduled (`problem_of`).
    """
    chain = Chain(graph, network)
    return chain.fusion(_balanced(chain))


def _balanced(chain: Chain) -> tuple[int, ...]:
    best_s = math.inf
    best: tuple[int, ...] = (0,)
    for groups, partition in enumerate(balanced_partitions(chain.sizes), start=1):
        if chain.never_before_s(groups) >= best_s * (1 - ROUNDING):
            break
        if not chain.rises and groups < len(chain.sizes) and groups % (groups // EVERY_UP_TO + 1):
            continue
        iteration_s = chain.iteration_s(partition.starts)
        if iteration_s < best_s * (1 - ROUNDING):
            best_s, best = iteration_s, partition.starts
    return best


def best_fusion(graph: Graph, network: Network) -> Fusion:
    """The best of all partitions of the chain into neighbours, which the paper does not look for; O(n) a probe.

    Algorithm 1 looks at one balanced partition for each R, and where sizes differ much another one can be better. The
    best can be computed where what is released later is also the more urgent. Let a group begin at place s and end
    before place e, and let m(e) groups follow it. By `least_time_of_chain` the iteration ends by `limit` if and only if
    for every group

        release(e - 1) + tail(e - 1) + (1 + m(e)) overheads + (all bytes from s on) / bandwidth <= limit.

    The fewer groups follow, the easier this is for those in front. So it is enough to know m(s), the least number of
    groups from s on with which it can be met, and to go backwards through the places. m(s) never falls as s goes back
    (a partition from s on, without its first member, is one from s + 1 on), so it is m(s + 1) or one more. For each of
    the two, the earliest e with so many groups behind it is the easiest. A bisection over `limit` lies between the
    least that any partition can reach and what Algorithm 1 found. Of the best partitions the result has the fewest
    groups.

    For a graph in which tails do not rise with releases this is `balanced_fusion`. Raises UserError as it does.
    """
    chain = Chain(graph, network)
    best = _balanced(chain)
    if not chain.rises:
        return chain.fusion(best)
    low, high = chain.least_s, chain.iteration_s(best)
    while high - low > ROUNDING * high:
        middle = (low + high) / 2
        starts = _within(chain, middle)
        if starts is None:
            low = middle
        else:
            best, high = starts, min(middle, chain.iteration_s(starts))
    return chain.fusion(_within(chain, high * (1 + ROUNDING)) or best)


def _within(chain: Chain, limit_s: float) -> tuple[int, ...] | None:
    """The fewest groups with which the iteration ends by `limit_s`, as the places where they begin."""
    n = len(chain.names)
    overhead_s = chain.network.overhead_s
    urgency_s = [0.0, *(chain.release + chain.tail).tolist()]  # by the place after it
    left_s = (chain.bytes_left / chain.network.bandwidth).tolist()
    following = [0] * (n + 1)  # m
    next_start = [n] * (n + 1)
    earliest = [n]  # by m: the earliest place with so many groups behind it
    for start in reversed(range(n)):
        least = following[start + 1]
        for count in range(max(0, least - 1), least + 1):
            end = earliest[count]
            if urgency_s[end] + (1 + count) * overhead_s + left_s[start] <= limit_s:
                break
        else:
            return None
        following[start], next_start[start] = count + 1, end
        del earliest[count + 1 :]
        earliest.append(start)
    starts = [0]
    while next_start[starts[-1]] < n:
        starts.append(next_start[starts[-1]])
    return tuple(starts)


def _name(members: Sequence[str]) -> str:
    return "+".join(members)


def segment_bytes(fusion: Fusion, graph: Graph, network: Network) -> tuple[tuple[int, ...], ...]:
    """Return for each group the bytes of its segments in the order of the schedule: where each fused tensor is cut.

    The overhead comes first, so a segment that ends before the overhead does carries nothing and is left out.
    """
    sizes = [sum(graph[name].size_bytes for name in group) for group in fusion.groups]
    cut: list[list[int]] = [[] for _ in sizes]
    used = [0.0] * len(sizes)
    for segment in fusion.segments:
        index = segment.transfer
        used[index] += segment.end - segment.start
        carried = (used[index] - network.overhead_s) * network.bandwidth
        whole = min(sizes[index], max(0, round(carried)))
        if whole > sum(cut[index]):
            cut[index].append(whole - sum(cut[index]))
    for size, parts in zip(sizes, cut, strict=True):
        if sum(parts) < size:  # by rounding
            parts[-1:] = [size - sum(parts[:-1])]
    return tuple(map(tuple, cut))
