"""Balanced fusion: which all-reduces travel as one (section V of the paper).

Rule of this file: partitions of a chain, the search for the number of groups, and the fused graph. Sizes are bytes,
times seconds. The schedule of schedule.py is the oracle that evaluates a partition.
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
    least_time_of_chain,
    preemptive_schedule,
)
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.core.network import Network

Floats = NDArray[np.float64]

ROUNDING = 1e-12
"""Minimum relative gain for a partition to count as better: sums of seconds in another order differ by less."""

EVERY_UP_TO = 200
"""Every R below this is evaluated, in any graph. The paper's models have at most 164 transfers."""


def balanced_partitions(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield, for R = 1, 2, ... groups, the partition whose smallest group is largest: the paper's MaxMinSize. A
    partition has the places at which groups start; the first is 0.

    Algorithm 1, lines 11-23: with best(s, R) for the part of the chain from place s on,

        best(s, R) = max over c > s of min(bytes from s to c, best(c, R - 1)),

    where ties go to the partition with the shorter first group. The first term rises with c and the second does not, so
    the maximum is where they cross. A binary search for each s finds it: O(n log n) for each R instead of the paper's
    O(n^2), with the same partitions. Raises UserError if `sizes` is empty or has a size that is not above 0.
    """
    n = len(sizes)
    if n == 0 or min(sizes) <= 0:
        raise UserError("fusion needs at least one transfer, and each of more than 0 bytes")
    before = np.concatenate([[0], np.cumsum(np.asarray(sizes, dtype=np.int64))])  # bytes before each place
    best = before[-1] - before[:-1]  # best[s] with one group
    cuts: list[list[int]] = []  # cuts[R - 2][s]: start of the second of R groups
    yield (0,)
    for groups in range(2, n + 1):
        # The first group starts at s <= n - groups, the second at c with s < c <= last.
        last = n - groups + 1
        rest = best[: last + 1]  # best[c] with groups - 1 groups
        first = np.arange(last)
        # Bytes from s to c reach rest[c] once before[c] - rest[c] reaches before[s]; past `last` they always do.
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
        yield tuple(starts)


@dataclass(frozen=True)
class Fusion:
    """Fused transfers: `groups` (names of transfers, in order of release) and their schedule.

    `problem` has one transfer per group, in the same order; `segments` is its best schedule, with which the iteration
    takes `iteration_s` seconds.
    """

    groups: tuple[tuple[str, ...], ...]
    problem: Problem
    segments: tuple[WireSegment, ...]
    iteration_s: float


class Chain:
    """The transfers of a graph in order of release, as arrays, to evaluate partitions of them.

    Among equal releases the longer tail comes later, so that neighbours are about equally urgent. `least_s` is a lower
    bound on the iteration time with any partition. `rises`: later releases are more urgent, as in a chain of layers.
    """

    def __init__(self, graph: Graph, network: Network) -> None:
        """Raise UserError for a graph that cannot be scheduled (`problem_of`)."""
        self._whole = problem_of(graph, network.transfer_s)
        chain = sorted(self._whole.transfers, key=lambda t: (t.release, t.tail))
        self.names = [transfer.name for transfer in chain]
        self.sizes = [graph[name].size_bytes for name in self.names]
        self.network = network
        self.release = np.array([transfer.release for transfer in chain])
        self.tail = np.array([transfer.tail for transfer in chain])
        self.rises = bool(np.all(self.tail[1:] >= self.tail[:-1]))
        self._before = np.concatenate([[0], np.cumsum(np.asarray(self.sizes, dtype=np.int64))])
        self.bytes_left = self._before[-1] - self._before  # from each place on
        free = problem_of(graph, Network(network.bandwidth).transfer_s)
        self.least_s = iteration_time(free, preemptive_schedule(free))

    def iteration_s(self, starts: Sequence[int]) -> float:
        """Return the end of the iteration under the best schedule of the groups that start at these places."""
        if self.rises:
            return max(self._whole.floor, least_time_of_chain(*self._fused(starts)))
        problem = self._problem(starts)
        return iteration_time(problem, preemptive_schedule(problem))

    def never_before_s(self, groups: int) -> float:
        """Return a lower bound on the iteration time with this many groups: all have to go before the least tail."""
        total_s = groups * self.network.overhead_s + self.bytes_left[0] / self.network.bandwidth
        return max(self.least_s, float(self.release[0] + total_s + self.tail.min()))

    def fusion(self, starts: Sequence[int]) -> Fusion:
        problem = self._problem(starts)
        segments = preemptive_schedule(problem)
        return Fusion(self._groups(starts), problem, segments, iteration_time(problem, segments))

    def _groups(self, starts: Sequence[int]) -> tuple[tuple[str, ...], ...]:
        ends = (*starts[1:], len(self.names))
        return tuple(tuple(self.names[start:end]) for start, end in zip(starts, ends, strict=True))

    def _problem(self, starts: Sequence[int]) -> Problem:
        numbers = (array.tolist() for array in self._fused(starts))
        rows = zip(map("+".join, self._groups(starts)), *numbers, strict=True)
        return Problem(self._whole.name, tuple(TimedTransfer(*row) for row in rows), self._whole.floor)

    def _fused(self, starts: Sequence[int]) -> tuple[Floats, Floats, Floats]:
        """Return the groups' releases (that of the last member), lengths, and tails (the longest of any member)."""
        first = np.asarray(starts)
        ends = np.append(first[1:], len(self.names))
        sizes = self._before[ends] - self._before[first]
        length = self.network.overhead_s + sizes / self.network.bandwidth
        return self.release[ends - 1], length, np.maximum.reduceat(self.tail, first)


def balanced_fusion(graph: Graph, network: Network) -> Fusion:
    """Return the balanced partition with the shortest iteration, over all numbers of groups, and its schedule.

    This is Algorithm 1. The chain has the transfers in order of release (Lemma 2). An all-reduce of s bytes takes
    `network.transfer_s(s)`, of which fusion saves the overhead. The number R goes up from 1 to n as in the paper, but
    without its stochastic search for large n: R groups never finish before (first release) + R overheads + (all bytes)
    + (least tail), so once that exceeds the best iteration so far, all larger R are worse.

    The cost is O(n^2 log n) for n transfers if later releases are more urgent, as in a chain of layers
    (`least_time_of_chain` is the oracle). Otherwise each R needs a schedule, O(R log R) in Python; then, from k times
    EVERY_UP_TO on, only every (k+1)-th R is tried, and n. That takes 0.6 s for 1,000 transfers.

    Raises UserError for a graph that cannot be scheduled (`problem_of`).
    """
    chain = Chain(graph, network)
    return chain.fusion(_balanced(chain))


def _balanced(chain: Chain) -> tuple[int, ...]:
    best_s = math.inf
    best: tuple[int, ...] = (0,)
    for groups, starts in enumerate(balanced_partitions(chain.sizes), start=1):
        if chain.never_before_s(groups) >= best_s * (1 - ROUNDING):
            break
        if not chain.rises and groups < len(chain.sizes) and groups % (groups // EVERY_UP_TO + 1):
            continue
        iteration_s = chain.iteration_s(starts)
        if iteration_s < best_s * (1 - ROUNDING):
            best_s, best = iteration_s, starts
    return best


def best_fusion(graph: Graph, network: Network) -> Fusion:
    """Return the best of all partitions of the chain into neighbours, which the paper does not compute; O(n) per probe.

    Algorithm 1 tries one balanced partition for each R; if sizes differ a lot, another can be better. The best can be
    computed if later releases are more urgent. Let a group start at place s and end before place e, and let m(e) groups
    follow it. By `least_time_of_chain`, the iteration ends by `limit` if and only if for every group

        release(e - 1) + tail(e - 1) + (1 + m(e)) overheads + (all bytes from s on) / bandwidth <= limit.

    The fewer groups follow, the easier this is for those in front. So it is enough to compute, backwards through the
    places, m(s): the minimum number of groups from s on that can meet the limit. m(s) never falls as s goes back (a
    partition from s on, without its first member, is one from s + 1 on), so it is m(s + 1) or one more. For either
    number, the earliest e with that many groups after it is the easiest. `limit` is found by bisection, between the
    lower bound for all partitions and the result of Algorithm 1. Among the best partitions, the result has the fewest
    groups.

    If tails do not rise with releases, this is `balanced_fusion`. Raises UserError like `balanced_fusion`.
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
    """Return the starts of the fewest groups with which the iteration ends by `limit_s`; None if there are none."""
    n = len(chain.names)
    overhead_s = chain.network.overhead_s
    urgency_s = [0.0, *(chain.release + chain.tail).tolist()]  # by the place after the transfer
    left_s = (chain.bytes_left / chain.network.bandwidth).tolist()
    following = [0] * (n + 1)  # m
    next_start = [n] * (n + 1)
    earliest = [n]  # by m: the earliest place with that many groups from there on
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


def segment_bytes(fusion: Fusion, graph: Graph, network: Network) -> tuple[tuple[int, ...], ...]:
    """Return, for each group, the bytes of its segments in schedule order: where each fused tensor is cut.

    The overhead comes first, so a segment that ends within it carries nothing and is left out.
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
