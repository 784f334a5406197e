"""What an engine that Prophet schedules owes the parts that know no engine, and the other way round.

Rule of this file: interfaces with their promises; no framework, thread or clock. What is owed where torch's tensors are
is in frontends/torch: `Arena` (arena.py), `AverageSource` (updates.py) and ports.py. Every engine is checked
against all of them (tests/contract/scheduled_engines).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray


Wish = TypeVar("Wish", contravariant=True)


class EventSource(Protocol):
    """Where an agent learns what happened to blocks; one agent asks, about every DRAIN_S (core/events.py).

    The engine owes: a block's ADD when all of its data is there, START when it is handed to the wire, FINISH when it is
    back, on the lane of pushes, with the id that the block has under the cut in force. Writing one costs the training
    thread microseconds and never fails it. What there is no room for is lost, and the next event says so by its `gap`.
    """

    def drain(self) -> NDArray[Any]:
        """All events since the last call (EVENT_DTYPE), in the order in which they happened. Never waits."""
        ...


class Wishes(Protocol[Wish]):
    """Where an agent leaves what it would have all workers do: a cut, on an engine of collectives with a sequence.

    The engine owes: what holds is the same on every worker in every round, whatever each of them wished; only the wish
    of the worker that decides counts, at the latest one, some rounds later or never. It is taken up between two rounds,
    with nothing of the arena staged or on its way. The agent owes a wish that any worker can follow.
    """

    def want(self, wish: Wish, /) -> None:
        """From some later round on. Called from the agent's thread; never waits."""
        ...
