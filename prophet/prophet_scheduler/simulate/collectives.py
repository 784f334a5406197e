"""Costs of an exchange of s bytes under the collective algorithms of the papers.

Rule of this file: formulas, each with its source. Every one is affine in s, so a `Network` holds it, and a policy that
plans with E(s) plans for a collective as it does for a link. Nothing here moves a byte.

The model is that of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005: a message of s bytes between any two workers takes alpha + s beta, a worker sends one and receives
one at a time, in both directions at full rate, and adding s bytes takes s gamma. Here alpha is `latency_s`, beta is
1 / `bandwidth`, gamma is 1 / `reduction_rate`, and p is `workers`. All workers are alike and ready. Caramel (section
4.2) and PACE (after Eq. 1) measure such a line instead of computing it.
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
    """Reduce-scatter and allgather round a ring: 2(p-1) alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    PACE, Eq. 1, which has no alpha; Thakur et al. 2005 have the two halves with it.

    The shuffle of Dean and Ghemawat (2008), which Caramel's experiments use (section 6.3), costs the same: every worker
    sends each other one its share, adds what it got, and sends the sum to all. In p-1 rounds it sends and receives s/p,
    twice. Messages to different workers at once and shared switches set them apart in a real cluster, not here.
    """
    share = (workers - 1) / workers
    return Work(2 * (workers - 1), 2 * share, share)


def tree(workers: int) -> Work:
    """Reduce to one worker along a binomial tree, then broadcast: ceil(lg p) (2 alpha + 2 s beta + s gamma).

    Thakur et al. 2005, the binomial trees of broadcast and of reduce. Whole vectors, no pipelining.
    """
    depth = math.ceil(math.log2(workers))
    return Work(2 * depth, 2 * depth, depth)


def double_tree(workers: int) -> Work:
    """Two binary trees with half of the vector each, in many blocks: 2 ceil(lg p) alpha + 2 s beta + s gamma.

    Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
    Computing 35(12), 2009: a worker is inside one tree and a leaf of the other, so it sends s bytes to reduce and s to
    broadcast. This is the limit of a perfect pipeline. It leaves out the cost of filling it and the latency of its
    blocks, so it is a lower bound, and yet above `ring` for few workers.
    """
    return Work(2 * math.ceil(math.log2(workers)), 2, 1)


def recursive_doubling(workers: int) -> Work:
    """Partners exchange whole vectors in lg p rounds: lg p (alpha + s beta + s gamma).

    Thakur et al. 2005. If p is no power of two, see `_fold`.
    """
    rounds, extra = _fold(workers)
    return Work(rounds + 2 * extra, rounds + 2 * extra, rounds + extra)


def halving_doubling(workers: int) -> Work:
    """Rabenseifner's algorithm: 2 lg p alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    Reduce-scatter by recursive halving, then allgather by recursive doubling: Thakur et al. 2005, and Figure 4c of
    Caramel. If p is no power of two, see `_fold`.
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
"""Algorithms by the name in a config."""


def collective_cost(
    name: str, workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None
) -> Network:
    """Return the line E(s) of the algorithm `name`.

    There are 2 or more `workers`. `latency_s` is seconds a message, `bandwidth` and `reduction_rate` are bytes per
    second. Without a `reduction_rate`, adding takes no time.
    """
    work = COLLECTIVES[name](workers)
    per_byte = work.sent / bandwidth + (work.added / reduction_rate if reduction_rate is not None else 0.0)
    return Network(bandwidth=1 / per_byte, overhead_s=work.messages * latency_s)


def _fold(workers: int) -> tuple[int, int]:
    """Return (rounds among the greatest power of two of the workers, 1 if some are left over).

    MPICH (allreduce of 2005 and since) lets each worker left over send its vector to a neighbour, which adds it and
    sends the result back at the end: 2 alpha + 2 s beta + s gamma more.
    """
    rounds = workers.bit_length() - 1
    return rounds, int(workers != 1 << rounds)
