"""Times of a job that Prophet only watches, from looks at some of its iterations.

Rule of this file: pure arithmetic on the times of ranks; a plugin reads them. Times are seconds.

A rank that is early waits for the slowest one as well as for the network. The slowest waits for the network alone, so
the least wait of all ranks in an iteration is the network's part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, stdev

from prophet_scheduler.core.status import ObservedTimes

FIRST = 4
"""First iteration that counts: before it torch makes its buckets anew, and memory is new."""
LEAST = 5
"""Looks from which a median says anything."""


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
