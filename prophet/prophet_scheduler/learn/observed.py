"""Times of a job that Prophet only watches, from looks at its iterations or from each collective that it waits for.

Rule of this file: pure arithmetic on the times of ranks; a plugin reads them. Times are seconds.

A rank that is early waits for the slowest one as well as for the network. The slowest waits for the network alone, so
the least wait of all ranks in an iteration is the network's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from statistics import linear_regression, median, stdev

from prophet_scheduler.core.status import ObservedTimes

FIRST = 4
"""First iteration that counts: before it torch makes its buckets anew, and memory is new."""
LEAST = 5
"""Looks from which a median says anything."""
SIZES_APART = 2.0
"""Factor between the largest and the smallest collective from which their times tell bytes from messages."""


@dataclass(frozen=True)
class TimedIteration:
    """One iteration of this rank: its number, when it began, its computing in backward, and its wait for averages."""

    iteration: int
    begun_s: float
    backward_s: float
    waited_s: float


def times_of(looks: Sequence[TimedIteration], others: Sequence[Mapping[int, float]] = ()) -> ObservedTimes | None:
    """Return the times of these `looks`, in order; None if there are too few.

    `others` has what each other rank waited, by iteration. Looks that some rank lacks are left out.
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
    """Return the gradients' places in forward order, and when each is there after backward begins, in seconds.

    `made` has when each was there in several backward passes, in any unit. The last one is there after `backward_s`.
    """
    took = [median(column) for column in zip(*made, strict=True)]
    forward = sorted(range(len(took)), key=lambda place: -took[place])
    last = took[forward[0]]
    return forward, tuple(backward_s * took[place] / last if last else 0.0 for place in forward)


class Collective(Enum):
    """Collective of a sharded module: of its parameters, of its gradients, or of what its replicas have summed up."""

    GATHER = 0
    REDUCE = 1
    ALL_REDUCE = 2


@dataclass(frozen=True)
class BackwardPass:
    """One backward pass of a job whose modules are sharded.

    `sizes` has the gradient bytes of each module, and `made_s` the computing until they were there, in the order of the
    reductions. `again` modules gathered their parameters a second time. `sums` has the sizes and the seconds of the
    sums that came last for each module: of replicas, or else of shards.
    """

    sizes: tuple[int, ...]
    made_s: tuple[float, ...]
    again: int
    sums: tuple[tuple[int, float], ...] = ()


def message_s(passes: Sequence[BackwardPass], ranks: int) -> float | None:
    """Return the time of a message beside its bytes; None where sizes are too much alike to tell.

    Each sum goes round a ring of `ranks` in 2 (ranks - 1) messages (simulate/collectives.py), each with its share of
    the bytes: `passes` with equal sums give a straight line.
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

    An iteration begins with the first forward pass after a reduction. So it may have several passes that reduce
    nothing.
    """

    def __init__(self) -> None:
        self._count = 0
        self._begun_s: float | None = None
        self._forward()

    def _forward(self) -> None:
        """Forget the iteration before."""
        self._waited_s = self._backward_waited_s = 0.0
        self._forward_ended_s: float | None = None
        self._reduced_s = 0.0
        self._newest = Collective.GATHER
        self._rows: list[tuple[int, float]] = []
        self._sums: list[tuple[int, float]] = []
        self._again = 0

    def forward_begins(self, now: float) -> tuple[TimedIteration, BackwardPass] | None:
        """Note that a forward pass begins. Returns the iteration that this ends, and its backward pass."""
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
        """Note that a module's part of a forward pass ends; the last one before backward counts."""
        self._forward_ended_s = now
        self._backward_waited_s = 0.0

    def waited(self, what: Collective, size_bytes: int, begun_s: float, ended_s: float, backward: bool) -> None:
        """Note a collective that the program has waited for. `size_bytes` are those of whole gradients."""
        if self._begun_s is None:  # Only what a forward pass leads to counts.
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
        """Return when backward began: where forward ended, as far as that was seen."""
        assert self._begun_s is not None
        return self._begun_s if self._forward_ended_s is None else self._forward_ended_s
