"""TAO and TIO: from a graph and a time oracle to the order in which parameters are received.

Rule of this file: Algorithms 1 to 3 of TicTac as pure functions; what an order is worth is worker.py's.

Two things make Algorithm 1 cheap. Computing operations that depend on the same outstanding transfers become ready
together, so they are kept as one load, in a table by their set of transfers; a set is one integer with a bit for each
transfer. And when a transfer leaves the outstanding set, sets that differed in it alone become equal, so the table
shrinks as the order grows. Times are kept in whole picoseconds: sums are then exact, and what is equal in the paper's
arithmetic is equal here, which matters since ties decide (Algorithm 2, line 7).

Where the paper leaves something open:

- Its Algorithm 2 returns A < B for A = min(P_A, M_B), B = min(P_B, M_A): the reverse of Eq. 5, which it was
  derived from, and which puts the worse order of its own Figure 2 first. `precedes` is Eq. 5.
- It calls the comparator transitive. Eq. 5 alone is, as a strict order, but with the tie-break by M+ it is not: A may
  precede C by Eq. 5 while both tie with B, and then M+ can close a circle. "The minimum" is therefore what one
  pass over the candidates in graph order ends with, and of two equals the first.
- Its receives are leaves of the graph. Here a transfer may also wait for computing, or for another transfer; then it is
  a candidate only once the transfers before it have their numbers.
- Only a transfer that something waits for gets a number: a gradient sent to a server blocks nothing on this worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prophet_papers.algorithms.tictac.oracle import TimeOracle, general_time
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind

PICOSECONDS = 1e12


@dataclass(frozen=True)
class Properties:
    """Properties of one outstanding transfer, by Algorithm 1. Seconds.

    `communication_s` is the paper's M, the time of the transfer. `load_s` is P, the computing that this transfer alone
    still holds up. `impending_s` is M+, the least communication that frees an operation held up by this transfer and
    by others; infinite where there is none.
    """

    communication_s: float
    load_s: float
    impending_s: float


def precedes(a: Properties, b: Properties) -> bool:
    """Return True if `a` goes before `b`: Eq. 5, and by the smaller M+ where that is a tie (Algorithm 2)."""
    first, second = min(b.load_s, a.communication_s), min(a.load_s, b.communication_s)
    if first != second:
        return first < second
    return a.impending_s < b.impending_s


def received(graph: Graph) -> tuple[Operation, ...]:
    """The transfers that an operation waits for, in graph order: those that an order is about."""
    awaited = {name for operation in graph.operations for name in operation.inputs}
    return tuple(operation for operation in graph.transfers if operation.name in awaited)


def properties(graph: Graph, oracle: TimeOracle) -> dict[str, Properties]:
    """Algorithm 1 with every transfer of `received(graph)` outstanding, by name."""
    state = _Outstanding(graph, oracle)
    return {state.names[place]: values for place, values in state.properties().items()}


def tao(graph: Graph, oracle: TimeOracle) -> dict[str, int]:
    """Timing-Aware Ordering (Algorithm 2): the number of each received transfer, 0 first, in that order.

    Raises UserError where the oracle gives an impossible time.
    """
    state = _Outstanding(graph, oracle)
    order: dict[str, int] = {}
    while state.outstanding:
        values = state.properties()
        best = -1
        for place in state.candidates():
            if best < 0 or precedes(values[place], values[best]):
                best = place
        state.complete(best)
        order[state.names[best]] = len(order)
    return order


def tio(graph: Graph) -> dict[str, int]:
    """Timing-Independent Ordering (Algorithm 3): numbers by M+ under the general oracle, the least first.

    Equals share a number and may go in any order. A number counts the transfers that come strictly before, as the
    counter of section 5.1 needs it: three transfers of which the first two are equal get 0, 0, 2. A transfer
    that nothing waits for together with another has no M+ and comes last.
    """
    values = properties(graph, general_time)
    order: dict[str, int] = {}
    number, previous = 0, -1.0
    for count, name in enumerate(sorted(values, key=lambda name: values[name].impending_s)):
        if values[name].impending_s > previous:
            number, previous = count, values[name].impending_s
        order[name] = number
    return order


def whole(graph: Graph, oracle: TimeOracle, operation: Operation) -> int:
    """Return what the oracle says of an operation, in whole picoseconds."""
    time_s = oracle(operation)
    if not math.isfinite(time_s) or time_s < 0:
        raise UserError(
            f"graph {graph.name!r}: operation {operation.name!r}: the time oracle gives {time_s}; "
            "it must be 0 or more seconds"
        )
    return round(time_s * PICOSECONDS)


class _Outstanding:
    """The outstanding transfers R and the computing that waits for them; `complete` takes one out.

    Transfers are places in `names`, sets of transfers are integers with one bit for each place.
    """

    def __init__(self, graph: Graph, oracle: TimeOracle) -> None:
        transfers = received(graph)
        self.names = [operation.name for operation in transfers]
        self.outstanding = (1 << len(transfers)) - 1
        self._times = [whole(graph, oracle, operation) for operation in transfers]
        self._before: dict[int, int] = {}  # the transfers that each transfer waits for
        # Of each set of transfers: the computing that waits for exactly these, and how long they take.
        self._held: dict[int, tuple[int, int]] = {}
        place_of = {name: place for place, name in enumerate(self.names)}
        depends: dict[str, int] = {}  # the paper's op.dep
        for operation in graph.operations:  # inputs come first
            mask = 0
            for name in operation.inputs:
                mask |= depends[name]
            place = place_of.get(operation.name)
            if place is not None:
                self._before[place] = mask
                mask |= 1 << place
            elif operation.kind is OperationKind.COMPUTE and mask:
                load, _ = self._held.get(mask, (0, 0))
                self._held[mask] = (load + whole(graph, oracle, operation), self._communication(mask))
            depends[operation.name] = mask

    def candidates(self) -> list[int]:
        """Return the transfers that may be received next, in graph order."""
        return [place for place, before in self._before.items() if not before & self.outstanding]

    def properties(self) -> dict[int, Properties]:
        """P, M and M+ of each outstanding transfer (Algorithm 1)."""
        loads: dict[int, int] = {}
        several: list[tuple[int, int]] = []
        for mask, (load, communication) in self._held.items():
            if mask & (mask - 1):
                several.append((communication, mask))
            else:
                loads[mask.bit_length() - 1] = load
        several.sort()
        impending: dict[int, int] = {}
        unknown = self.outstanding
        for communication, mask in several:  # the least first, so what is set is final
            for place in _bits(mask & unknown):
                impending[place] = communication
            unknown &= ~mask
            if not unknown:
                break
        return {
            place: Properties(
                self._times[place] / PICOSECONDS,
                loads.get(place, 0) / PICOSECONDS,
                impending[place] / PICOSECONDS if place in impending else math.inf,
            )
            for place in _bits(self.outstanding)
        }

    def complete(self, place: int) -> None:
        """Takes a transfer out of R."""
        bit = 1 << place
        self.outstanding &= ~bit
        del self._before[place]
        held: dict[int, tuple[int, int]] = {}
        for mask, (load, communication) in self._held.items():
            if mask & bit:
                mask, communication = mask & ~bit, communication - self._times[place]
            if mask:
                held[mask] = (held.get(mask, (0, 0))[0] + load, communication)
        self._held = held

    def _communication(self, mask: int) -> int:
        """The paper's op.M: the time of all transfers in the set."""
        return sum(self._times[place] for place in _bits(mask))


def _bits(mask: int) -> list[int]:
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places
