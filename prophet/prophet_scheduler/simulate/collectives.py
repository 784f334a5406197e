"""Cost of all-reducing s bytes with the collective algorithms of the papers.

Rule of this file: formulas, each with its source. Each is affine in s, so a `Network` can represent it: a policy that
plans with E(s) can plan for a collective as for a link. Nothing here moves any data.

The model is that of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005. A message of s bytes between any two workers takes alpha + s beta. A worker sends one message and
receives one at a time, at full rate in both directions. Adding s bytes takes s gamma. Here alpha is `latency_s`, beta
is 1 / `bandwidth`, gamma is 1 / `reduction_rate`, and p is `workers`. All workers are alike and start together. Caramel
(section 4.2) and PACE (after Eq. 1) measure such a line instead of computing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from prophet_scheduler.core.network import Network


class Work(NamedTuple):
    """Work of an algorithm: E(s) is `messages` alpha + s (`sent` beta + `added` gamma)."""

    messages: float
    sent: float
    added: float


def ring(workers: int) -> Work:
    """Reduce-scatter and all-gather around a ring: 2(p-1) alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    PACE, Eq. 1, but without alpha; Thakur et al. 2005 have both halves with it.

    The shuffle of Dean and Ghemawat (2008), which Caramel's experiments use (section 6.3), costs the same. Each worker
    sends every other worker its share, adds the shares it received, and sends the sum to all. So in p-1 rounds, twice,
    it sends and receives s/p. In a real cluster, concurrent messages and shared switches make a difference; not here.
    """
    share = (workers - 1) / workers
    return Work(2 * (workers - 1), 2 * share, share)


def tree(workers: int) -> Work:
    """Reduce to one worker along a binomial tree, then broadcast: ceil(lg p) (2 alpha + 2 s beta + s gamma).

    The binomial trees for broadcast and reduce of Thakur et al. 2005, with whole vectors and no pipelining.
    """
    depth = math.ceil(math.log2(workers))
    return Work(2 * depth, 2 * depth, depth)


def double_tree(workers: int) -> Work:
    """Two binary trees, each for half of the vector in many blocks: 2 ceil(lg p) alpha + 2 s beta + s gamma.

    Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
    Computing 35(12), 2009. A worker is an inner node of one tree and a leaf of the other, so it sends s bytes to reduce
    and s to broadcast. This is the limit of a perfect pipeline: a lower bound without the cost of filling the pipeline
    and the latency of its blocks. Even so, it exceeds `ring` for few workers.
    """
    return Work(2 * math.ceil(math.log2(workers)), 2, 1)


def recursive_doubling(workers: int) -> Work:
    """Exchange of whole vectors between partners in lg p rounds: lg p (alpha + s beta + s gamma).

    Thakur et al. 2005. If p is not a power of two, see `_fold`.
    """
    rounds, extra = _fold(workers)
    return Work(rounds + 2 * extra, rounds + 2 * extra, rounds + extra)


def halving_doubling(workers: int) -> Work:
    """Rabenseifner's algorithm: 2 lg p alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    Reduce-scatter by recursive halving, then all-gather by recursive doubling: Thakur et al. 2005, and Figure 4c of
    Caramel. If p is not a power of two, see `_fold`.
    """
    rounds, extra = _fold(workers)
    share = 1 - 1 / 2**rounds
    return Work(2 * (rounds + extra), 2 * (share + extra), share + extra)


COLLECTIVES: Mapping[str, Callable[[int], Work]] = MappingProxyType(
    {
        "ring": ring,
        "shuffle": ring,
        "tree": tree,
        "double-tree": double_tree,
        "recursive-doubling": recursive_doubling,
        "halving-doubling": halving_doubling,
    }
)
"""Algorithms by their name in a config."""


def collective_cost(
    name: str, workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None
) -> Network:
    """Return the line E(s) of the algorithm `name` for 2 or more `workers`.

    `latency_s` is in seconds per message, `bandwidth` and `reduction_rate` in bytes per second. Without a
    `reduction_rate`, adding takes no time.
    """
    work = COLLECTIVES[name](workers)
    per_byte = work.sent / bandwidth + (work.added / reduction_rate if reduction_rate is not None else 0.0)
    return Network(bandwidth=1 / per_byte, overhead_s=work.messages * latency_s)


def _fold(workers: int) -> tuple[int, int]:
    """Return (lg of the largest power of two up to `workers`, 1 if workers are left over, else 0).

    In MPICH (allreduce since 2005), each worker left over sends its vector to a neighbour, which adds it and sends the
    result back at the end. This costs another 2 alpha + 2 s beta + s gamma.
    """
    rounds = workers.bit_length() - 1
    return rounds, int(workers != 1 << rounds)
