"""Input of PACE's scheduler, from a graph: a release, a length and a tail for each transfer.

Rule of this file: the values, their checks, and the reduction of the paper's section IV-B (Lemma 1, Theorem 1);
schedule.py decides when each transfer goes. All times have the same unit, e.g. seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, OperationKind


@dataclass(frozen=True)
class TimedTransfer:
    """An all-reduce that may run from `release` on, needs the wire for `length`, and is followed by `tail`.

    These are the paper's z_u(i), g_i and the sum of f over L_i.
    """

    name: str
    release: float
    length: float
    tail: float


@dataclass(frozen=True)
class Problem:
    """One wire, `transfers` that may be interrupted, and `floor`: the end of the last path without a transfer.

    The iteration ends at max(floor, end + tail of every transfer). Raises UserError for an impossible time.
    """

    name: str
    transfers: tuple[TimedTransfer, ...]
    floor: float = 0.0

    def __post_init__(self) -> None:
        if not self.transfers:
            raise UserError(f"{self.name!r}: has no transfers, so there is nothing to schedule; give at least one")
        for transfer in self.transfers:
            for key in ("release", "length", "tail"):
                value = getattr(transfer, key)
                if not math.isfinite(value) or value < 0:
                    raise UserError(
                        f"{self.name!r}: transfer {transfer.name!r}: '{key}' is {value}; it must be 0 or more"
                    )


def problem_of(graph: Graph, transfer_s: Callable[[int], float]) -> Problem:
    """Return the releases, lengths and tails of a graph in which no transfer follows another (section IV-A).

    `transfer_s` returns the seconds that an all-reduce of that many bytes takes, e.g. `Network.transfer_s`. An
    operation starts as soon as its inputs are ready (constraint 5: unlimited devices), so

    - the release of a transfer is the longest compute path before it (Lemma 1: no transfer is on that path, so no
      schedule can move it), and
    - the last operation ends at the maximum of `floor` and, over all transfers, end + tail, where the tail is the
      longest compute path after the transfer. Theorem 1: unroll the maximum in (5) along each path, backwards from the
      end. A path stops at the only transfer on it, or has none; among paths that stop at the same transfer, the longest
      counts.

    A transfer may have several inputs, and an operation may wait for several transfers. A transfer that nothing waits
    for has tail 0: the iteration does not end before it. Raises UserError if a transfer follows another, or if there
    is none.
    """
    where = f"graph {graph.name!r}"
    after: dict[str, str] = {}  # by operation: a transfer that it is or follows
    ends: dict[str, float] = {}
    release: dict[str, float] = {}
    for operation in graph.operations:
        computed = max((ends[name] for name in operation.inputs if name in ends), default=0.0)
        behind = [after[name] for name in operation.inputs if name in after]
        if operation.kind is OperationKind.TRANSFER:
            if behind:
                raise UserError(
                    f"{where}: transfer {operation.name!r} comes after transfer {behind[0]!r}; PACE needs a graph of "
                    "one iteration in which gradients are computed before any transfer"
                )
            release[operation.name] = computed
            after[operation.name] = operation.name
        else:
            ends[operation.name] = computed + operation.time_s
            if behind:
                after[operation.name] = behind[0]
    tails: dict[str, float] = {}
    users = graph.successors()
    for operation in reversed(graph.operations):
        tails[operation.name] = operation.time_s + max((tails[name] for name in users[operation.name]), default=0.0)
    transfers = tuple(
        TimedTransfer(o.name, release[o.name], transfer_s(o.size_bytes), tails[o.name] - o.time_s)
        for o in graph.transfers
    )
    return Problem(graph.name, transfers, max(ends.values(), default=0.0))
