"""What an exchange of s bytes costs under the collective algorithms of the papers.

Rule of this file: formulas, each with its source; every one is affine in s, so a `Network` holds it, and a policy that
plans with E(s) plans for a collective as it does for a link. Nothing here moves a byte.

The model is that of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005: a message of s bytes between any two workers takes alpha + s beta, a worker sends one
and receives one at a time, in both directions at full rate, and adding s bytes takes s gamma. Here alpha is
`latency_s`, beta is 1 / `bandwidth`, gamma is 1 / `reduction_rate`, and p is `workers`. All workers are alike and
ready. Caramel (section 4.2) and PACE (after Eq. 1) measure such a line instead of computing it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network

CollectiveCost = Callable[[int, float, float, float | None], Network]
"""(workers, latency_s, bandwidth, reduction_rate) -> the line E(s)."""


def ring(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None) -> Network:
    """Reduce-scatter and allgather round a ring: 2(p-1) alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    PACE, Eq. 1, which has no alpha; Thakur et al. 2005 have the two halves with it. `latency_s` is seconds a message,
    `bandwidth` and `reduction_rate` are bytes per second, and None means that adding takes no time.
    Raises UserError for fewer than 2 workers and for impossible rates, as all functions here do.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    share = (workers - 1) / workers
    return _line(2 * (workers - 1), 2 * share, share, latency_s, bandwidth, reduction_rate)


def shuffle(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None) -> Network:
    """Every worker sends each other one its share, adds what it got, and sends the sum to all; as `ring` costs.

    The pattern of Dean and Ghemawat (2008), which Caramel's experiments use (section 6.3). In p-1 rounds each worker
    sends s/p to another one and receives as much, twice. In this model that is the cost of a ring; what sets them
    apart in a real cluster, messages to different workers at once and shared switches, is not in it.
    """
    return ring(workers, latency_s, bandwidth, reduction_rate)


def tree(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None) -> Network:
    """Reduce to one worker along a binomial tree, then broadcast: ceil(lg p) (2 alpha + 2 s beta + s gamma).

    Thakur et al. 2005, the binomial trees of broadcast and of reduce. Whole vectors, no pipelining.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    depth = math.ceil(math.log2(workers))
    return _line(2 * depth, 2 * depth, depth, latency_s, bandwidth, reduction_rate)


def double_tree(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None) -> Network:
    """Two binary trees with half of the vector each, in many blocks: 2 ceil(lg p) alpha + 2 s beta + s gamma.

    Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
    Computing 35(12), 2009: a worker is inside one tree and a leaf of the other, so it sends s bytes to reduce and s to
    broadcast. This is the limit of a perfect pipeline: it leaves out what filling it and the latency of
    its blocks cost, so it is a lower bound, and yet above `ring` for few workers.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    depth = math.ceil(math.log2(workers))
    return _line(2 * depth, 2, 1, latency_s, bandwidth, reduction_rate)


def recursive_doubling(
    workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None
) -> Network:
    """In lg p rounds, partners exchange whole vectors: lg p (alpha + s beta + s gamma).

    Thakur et al. 2005. If p is no power of two, see `_fold`.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    rounds, extra = _fold(workers)
    return _line(rounds + 2 * extra, rounds + 2 * extra, rounds + extra, latency_s, bandwidth, reduction_rate)


def halving_doubling(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None) -> Network:
    """Rabenseifner's algorithm: 2 lg p alpha + 2 (p-1)/p s beta + (p-1)/p s gamma.

    Reduce-scatter by recursive halving, then allgather by recursive doubling: Thakur et al. 2005, and Figure 4c of
    Caramel. If p is no power of two, see `_fold`.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    rounds, extra = _fold(workers)
    share = 1 - 1 / 2**rounds
    return _line(2 * (rounds + extra), 2 * (share + extra), share + extra, latency_s, bandwidth, reduction_rate)


def parameter_server(
    workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None = None, servers: int | None = None
) -> Network:
    """Push, add, pull, one after another: 2 max(p, m) (alpha + s/m beta) + (p-1)/m s gamma with m servers.

    Caramel, section 8, names the three steps; MLfabric, section 2, that the server's link is the bottleneck. Every one
    of p workers sends s/m to each of m servers; with one message at a time at either end that takes max(p, m) rounds
    (a complete bipartite graph's edges have that many colours: Koenig). As many servers as workers where
    `servers` is None, as BytePS advises; each has a link of `bandwidth` of its own. Pushes and pulls of different
    gradients overlap in a real job: the simulator's parameter server has that, this line has not.
    """
    _check(workers, latency_s, bandwidth, reduction_rate)
    count = workers if servers is None else servers
    if count < 1:
        raise UserError(f"servers is {count}; a parameter server needs 1 or more")
    rounds = 2 * max(workers, count)
    return _line(rounds, rounds / count, (workers - 1) / count, latency_s, bandwidth, reduction_rate)


COLLECTIVE_COSTS: Mapping[str, CollectiveCost] = MappingProxyType(
    {
        "ring": ring,
        "shuffle": shuffle,
        "tree": tree,
        "double-tree": double_tree,
        "recursive-doubling": recursive_doubling,
        "halving-doubling": halving_doubling,
        "parameter-server": parameter_server,
    }
)
"""By the name that a config gives."""


def _fold(workers: int) -> tuple[int, int]:
    """Rounds among the greatest power of two of the workers, and 1 where some are left over.

    MPICH (allreduce of 2005 and since) lets each worker left over send its vector to a neighbour, which adds it and
    sends the result back at the end: 2 alpha + 2 s beta + s gamma more.
    """
    rounds = workers.bit_length() - 1
    return rounds, int(workers != 1 << rounds)


def _line(
    messages: float, sent: float, added: float, latency_s: float, bandwidth: float, reduction_rate: float | None
) -> Network:
    """`messages` alpha + s (`sent` beta + `added` gamma)."""
    per_byte = sent / bandwidth + (added / reduction_rate if reduction_rate is not None else 0.0)
    return Network(bandwidth=1 / per_byte, overhead_s=messages * latency_s)


def _check(workers: int, latency_s: float, bandwidth: float, reduction_rate: float | None) -> None:
    if workers < 2:
        raise UserError(f"workers is {workers}; a collective needs 2 or more")
    if not (math.isfinite(latency_s) and latency_s >= 0):
        raise UserError(f"latency_s is {latency_s}; it must be 0 or more seconds")
    for key, rate in (("bandwidth", bandwidth), ("reduction_rate", reduction_rate)):
        if rate is not None and not (math.isfinite(rate) and rate > 0):
            raise UserError(f"{key} is {rate} bytes per second; it must be above 0")
