"""Times of a job that Prophet only watches, from samples of its iterations or from each collective that it waits for.

Rule of this file: pure arithmetic on the times of ranks; a plugin measures them. Times are in seconds.

An early rank waits for the slowest rank as well as for the network. The slowest waits for the network alone, so the
shortest wait of all ranks in an iteration is the network's share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import linear_regression, median, stdev

from prophet_scheduler.core.status import ObservedTimes

FIRST = 4
"""First iteration that counts: in earlier ones torch rebuilds its buckets and memory is used for the first time."""
LEAST = 5
"""Minimum number of looks (watched iterations) for a meaningful median."""
SIZES_APART = 2.0
"""Minimum ratio of the largest collective to the smallest for their times to separate bytes from messages."""


@dataclass(frozen=True)
class TimedIteration:
    """One iteration of this rank: its number, start time, compute time in backward, and wait for averages."""

    iteration: int
    begun_s: float
    backward_s: float
    waited_s: float


def times_of(looks: Sequence[TimedIteration], others: Sequence[Mapping[int, float]] = ()) -> ObservedTimes | None:
    """Return the times of these `looks`, which are in order; None if there are too few.

    `others`: the waits of each other rank, by iteration. Looks missing on some rank are left out.
    """
    counted = [
        (look, min(look.waited_s, *(other[look.iteration] for other in others)) if others else look.waited_s)
        for look in looks
        if look.iteration >= FIRST and all(look.iteration in other for other in others)
    ]
    if len(counted) < LEAST:
        return None
    network_s = [least_s for _, least_s in counted]
    return ObservedTimes(
        iteration_s=median(
            (after.begun_s - look.begun_s) / (after.iteration - look.iteration)
            for (look, _), (after, _) in pairwise(counted)
        ),
        backward_s=median(look.backward_s for look, _ in counted),
        network_s=median(network_s),
        others_s=median(look.waited_s - least_s for look, least_s in counted),
        error_s=stdev(network_s) / len(counted) ** 0.5,
        looks=len(counted),
    )


def in_forward_order(made: Sequence[Sequence[float]], backward_s: float) -> tuple[list[int], tuple[float, ...]]:
    """Return the gradients' indices in forward order, and the seconds from the start of backward until each is ready.

    `made`: when each gradient was ready, for several backward passes, in any unit. The last one takes `backward_s`.
    """
    took = [median(column) for column in zip(*made, strict=True)]
    forward = sorted(range(len(took)), key=lambda place: -took[place])
    last = took[forward[0]]
    return forward, tuple(backward_s * took[place] / last if last else 0.0 for place in forward)


class Collective(Enum):
    """Collective of a sharded module: on its parameters, on its gradients, or on the reduced gradients of replicas."""

    GATHER = 0
    REDUCE = 1
    ALL_REDUCE = 2


@dataclass(frozen=True)
class BackwardPass:
    """One backward pass of a job with sharded modules.

    `sizes`: gradient bytes of each module. `made_s`: compute time until they were ready. Both are in the order of the
    reductions. `again`: number of modules that gathered their parameters a second time. `sums`: bytes and seconds of
    each module's last sum, which is over replicas if there are any, or else over shards.
    """

    sizes: tuple[int, ...]
    made_s: tuple[float, ...]
    again: int
    sums: tuple[tuple[int, float], ...] = ()


def message_s(passes: Sequence[BackwardPass], ranks: int) -> float | None:
    """Return the seconds of a message besides its bytes; None if sizes are too similar to tell.

    A sum travels around a ring of `ranks` in 2 (ranks - 1) messages (simulate/collectives.py), each with an equal share
    of the bytes. So the times of sums lie on a straight line over their sizes. All `passes` must have the same sums.
    """
    sizes = [size for size, _ in passes[0].sums]
    if len(sizes) < 2 or max(sizes) < SIZES_APART * min(sizes):
        return None
    took_s: list[float] = [
        median(seconds for _, seconds in column) for column in zip(*(each.sums for each in passes), strict=True)
    ]
    fixed_s = linear_regression(sizes, took_s).intercept
    return min(max(0.0, fixed_s), *took_s) / (2 * (ranks - 1))


class ShardedIterations:
    """Iterations of a job that waits for each collective of its sharded modules in turn.

    An iteration begins with the first forward pass after a reduction, so it may contain several passes without one.
    """

    def __init__(self) -> None:
        self._count = 0
        self._begun_s: float | None = None
        self._forward()

    def _forward(self) -> None:
        """Forget the previous iteration."""
        self._waited_s = self._backward_waited_s = 0.0
        self._forward_ended_s: float | None = None
        self._reduced_s = 0.0
        self._newest = Collective.GATHER
        self._rows: list[tuple[int, float]] = []
        self._sums: list[tuple[int, float]] = []
        self._again = 0

    def forward_begins(self, now: float) -> tuple[TimedIteration, BackwardPass] | None:
        """Note that a forward pass begins. Return the iteration that this ends, if any, and its backward pass."""
        if self._begun_s is None:
            self._begun_s = now
        if not self._rows:
            return None
        began_s = self._began_s()
        sizes, made_s = zip(*self._rows, strict=True)
        computed_s = self._reduced_s - began_s - self._backward_waited_s
        timed = TimedIteration(self._count, self._begun_s, max(0.0, computed_s), self._waited_s)
        found = timed, BackwardPass(sizes, made_s, self._again, tuple(self._sums))
        self._count += 1
        self._begun_s = now
        self._forward()
        return found

    def forward_ends(self, now: float) -> None:
        """Note that a module's part of a forward pass ends; the last part before backward counts."""
        self._forward_ended_s = now
        self._backward_waited_s = 0.0

    def waited(self, what: Collective, size_bytes: int, begun_s: float, ended_s: float, backward: bool) -> None:
        """Record a collective that the program has waited for. `size_bytes`: size of the unsharded gradients."""
        if self._begun_s is None:  # Collectives before the first forward pass do not count.
            return
        self._waited_s += ended_s - begun_s
        if not backward:
            return
        before_s = self._backward_waited_s
        self._backward_waited_s += ended_s - begun_s
        if what is Collective.GATHER:
            self._again += 1
        else:
            if what is Collective.REDUCE or self._newest is not Collective.REDUCE:
                self._rows.append((size_bytes, max(0.0, begun_s - self._began_s() - before_s)))
                self._sums.append((size_bytes, ended_s - begun_s))
            else:
                self._sums[-1] = size_bytes, ended_s - begun_s
            self._reduced_s = ended_s
        self._newest = what

    def _began_s(self) -> float:
        """Return when backward began: the end of forward, or the start of the iteration if that end was not seen."""
        assert self._begun_s is not None
        return self._begun_s if self._forward_ended_s is None else self._forward_ended_s
