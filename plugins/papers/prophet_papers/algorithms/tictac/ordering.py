"""TAO and TIO: from a graph and a time oracle to the order in which parameters are received.

A time oracle is the paper's Time(op): the seconds, 0 or more, of one operation that has its resource to itself (section
3).

Rule of this file: Algorithms 1 to 3 of TicTac as pure functions; worker.py evaluates an order.

Two things make Algorithm 1 cheap. Compute operations that depend on the same outstanding transfers become ready
together, so they are one load, in a table by their set of transfers; a set is an integer with a bit for each transfer.
And when a transfer leaves the outstanding set, sets that differ only in that transfer become equal, so the table
shrinks as the order grows. Times are whole picoseconds, so sums are exact, and times that are equal in the paper's
arithmetic are equal here. This matters because ties decide (Algorithm 2, line 7).

Choices where the paper is not explicit, or differs:

- Its Algorithm 2 returns A < B for A = min(P_A, M_B), B = min(P_B, M_A). That is the reverse of Eq. 5, its source, and
  puts the worse order of its own Figure 2 first. `precedes` is Eq. 5.
- It calls the comparator transitive. Eq. 5 alone is, as a strict order, but with the tie-break by M+ it is not: A may
  precede C by Eq. 5 while both tie with B, and then M+ can close a cycle. "The minimum" is therefore the result of a
  single pass over the candidates in graph order; of two equals, the first.
- Its receives are leaves of the graph. Here a transfer may also wait for compute, or for another transfer; it is then a
  candidate only once the transfers before it have their numbers.
- Only a transfer that an operation waits for gets a number: a gradient sent to a server blocks nothing on this worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind
from prophet_scheduler.core.network import Network

TimeOracle: TypeAlias = Callable[[Operation], float]

PICOSECONDS = 1e12


def general_time(operation: Operation) -> float:
    """Return 1 for a transfer, 0 for compute: Eq. 6, the oracle of TIO."""
    return 1.0 if operation.kind is OperationKind.TRANSFER else 0.0


def graph_time(network: Network) -> TimeOracle:
    """Return the oracle of the graph's own times: `time_s` for compute, `size_bytes` on `network` for a transfer."""

    def time_s(operation: Operation) -> float:
        transfer = operation.kind is OperationKind.TRANSFER
        return network.transfer_s(operation.size_bytes) if transfer else operation.time_s

    return time_s


@dataclass(frozen=True)
class Properties:
    """Properties of one outstanding transfer by Algorithm 1, in seconds.

    `communication_s` is the paper's M, the time of the transfer. `load_s` is P, the compute that only this transfer
    still blocks. `impending_s` is M+, the least communication that unblocks an operation blocked by this transfer and
    others; infinite if there is no such operation.
    """

    communication_s: float
    load_s: float
    impending_s: float


def precedes(a: Properties, b: Properties) -> bool:
    """Return True if `a` goes before `b`: by Eq. 5, and on a tie by the smaller M+ (Algorithm 2)."""
    first, second = min(b.load_s, a.communication_s), min(a.load_s, b.communication_s)
    if first != second:
        return first < second
    return a.impending_s < b.impending_s


def received(graph: Graph) -> tuple[Operation, ...]:
    """Return the transfers that an operation waits for, in graph order; only these are ordered."""
    awaited = {name for operation in graph.operations for name in operation.inputs}
    return tuple(operation for operation in graph.transfers if operation.name in awaited)


def properties(graph: Graph, oracle: TimeOracle) -> dict[str, Properties]:
    """Return the result of Algorithm 1, by name, with every transfer of `received(graph)` outstanding."""
    state = _Outstanding(graph, oracle)
    return {state.names[place]: values for place, values in state.properties().items()}


def tao(graph: Graph, oracle: TimeOracle) -> dict[str, int]:
    """Return the number of each received transfer, from 0, by Timing-Aware Ordering (Algorithm 2), in that order.

    Raises UserError if the oracle gives an impossible time.
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
    """Return numbers by Timing-Independent Ordering (Algorithm 3): by M+ under the general oracle, the least first.

    Equals share a number and may go in any order. A number is the count of transfers that come strictly before, as the
    counter of section 5.1 needs: three transfers, the first two of them equal, get 0, 0, 2. A transfer has no M+, and
    comes last, if no operation waits for it together with another.
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
    """Return the oracle's time for an operation in whole picoseconds. Raises UserError for an impossible time."""
    time_s = oracle(operation)
    if not math.isfinite(time_s) or time_s < 0:
        raise UserError(
            f"graph {graph.name!r}: operation {operation.name!r}: the time oracle gives {time_s}; "
            "it must be 0 or more seconds"
        )
    return round(time_s * PICOSECONDS)


class _Outstanding:
    """The outstanding transfers R and the compute that waits for them; `complete` removes a transfer.

    Transfers are indices in `names`; sets of transfers are integers with one bit per index.
    """

    def __init__(self, graph: Graph, oracle: TimeOracle) -> None:
        transfers = received(graph)
        self.names = [operation.name for operation in transfers]
        self.outstanding = (1 << len(transfers)) - 1
        self._times = [whole(graph, oracle, operation) for operation in transfers]
        self._before: dict[int, int] = {}  # the transfers that each transfer waits for
        # By set of transfers: the compute that waits for exactly these, and their communication time.
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
        """Return P, M and M+ of each outstanding transfer (Algorithm 1)."""
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
        for communication, mask in several:  # the least first, so the first value set is final
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
        """Remove a transfer from R."""
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
        """Return the time of all transfers in the set: the paper's op.M."""
        return sum(self._times[place] for place in _bits(mask))


def _bits(mask: int) -> list[int]:
    places = []
    while mask:
        low = mask & -mask
        places.append(low.bit_length() - 1)
        mask ^= low
    return places
