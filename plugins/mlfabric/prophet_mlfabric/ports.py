"""Port between a worker's front end and the coordinator's client.

Rule of this file: the values and the port between the two, without a socket. client.py implements it over a network;
a test, or a job without a coordinator, implements it in a few lines.

A worker's round, in this order:

    asking = coordinator.ask(size_bytes, version, norm)     # at once; the update's gradients may still be moving
    permission = asking.permission.result()                 # when it may start, to the second; never for ever
    if not permission.goes: discard the update, pull, compute from there
    push all blocks of it to the server (or send it to worker permission.aggregator at permission.address)
    outcome = coordinator.done(asking, size_bytes).result() # the server has all of it (a member of a sum: not called)
    pull; what is pulled from now on holds at least outcome.version updates

`version` of the next `ask` is that `outcome.version` if the pull began after it, and `permission.version` if pulls
began before: with those the coordinator never takes an update for fresher than it is, and the delay bound holds.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Permission:
    """Decision about an update or, with `sum`, about the sum of the collection of that number. It is there when it may
    start: there is nothing left to wait for.

    `goes`: False where it is dropped, for `reason`, before it costs a byte. `aggregator`: the worker to send it to, at
    `address`; None for the server. `version`: how many updates the server's model had at least when this was decided.
    `coordinated`: False where the coordinator is away or slow, and the update goes in arrival order.
    """

    update: int
    goes: bool
    reason: str
    aggregator: int | None
    version: int
    coordinated: bool
    address: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Outcome:
    """End of an update that went, or of a sum.

    `applied`: it is in the server's model, which then had `version` updates, after a delay of `delay` versions (None
    where the coordinator is away: nobody counted). Where it was lost with its aggregator, `reason` says so: it never
    will be applied, and may be computed anew.
    """

    update: int
    applied: bool
    version: int
    delay: int | None
    reason: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Pass:
    """The model may be read that follows so many rounds; `coordinated`: the bound on leads allows it."""

    rounds: int
    coordinated: bool


@dataclass(frozen=True)
class Asking:
    """An update that was asked for: `permission` as above, `outcome` once it is applied or lost.

    Both always end: without a coordinator `permission` after the client's bound, and `outcome` at `done`.
    """

    update: int
    permission: Future[Permission] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)


@dataclass(frozen=True)
class Collection:
    """Updates that this worker is to sum: pairs of worker and update, of which some may be its own.

    `number` is the coordinator's. The same number again replaces it: a member has died, or went by itself.
    """

    number: int
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ModelCopy:
    """The model that this worker is to hand to the replica, read after this was heard; `bound` is a norm.

    `number` is the coordinator's. It may come again: what was not said to be kept, or not to be, is asked for again.
    """

    number: int
    bound: float


class CopiesPort(Protocol):
    """Requests of a worker that makes copies for a replica. Both may be called from any thread."""

    def on_copy(self, copy: Callable[[ModelCopy], None]) -> None:
        """`copy` is called, from the client's thread, for what of the model is to go to the replica."""

    def copied(self, number: int, reason: str = "") -> None:
        """The replica keeps that copy; or it did not get there for `reason`."""


class CoordinatorPort(CopiesPort, Protocol):
    """Requests of a front end. All may be called from any thread, and none but one blocks."""

    @property
    def version(self) -> int:
        """The newest version that the coordinator has told this worker: updates applied."""

    def ask(self, size_bytes: int, version: int, norm: float) -> Asking:
        """Asks for an update of `size_bytes`, computed from `version` of the model, with that Euclidean norm.

        Raises UserError for sizes, versions or norms that cannot be.
        """

    def done(self, asking: Asking, size_bytes: int) -> Future[Outcome]:
        """The server has acknowledged every byte of it. Returns `asking.outcome`. A second call counts once.

        Also of one that was said to be lost, and that the worker sees in the model after all.
        """

    def on_collect(self, collect: Callable[[Collection], None], address: str) -> None:
        """This worker can aggregate, and takes updates at `address`: `collect` is called, from the client's thread, for
        what it is to sum."""

    def collected(self, number: int) -> Future[Permission]:
        """Say that the collection's members are here and summed. The result comes when the sum may go to the server."""

    def pushed_sum(self, number: int, size_bytes: int) -> None:
        """The server has all of the sum; its members' outcomes follow, at their workers."""

    def clock(self, rounds: int, models: int) -> Future[bool]:
        """This worker has finished so many rounds and read so many models, the first ones included.

        Where the two are equal it ends when the next model may be read: with True when the slowest worker is near
        enough, with False where the coordinator is away, and nobody is waited for.
        """

    def wait_for_others(self) -> tuple[int, ...]:
        """This worker has finished. Returns when all others have, or have died: these, whom nobody need wait for.

        The one method that blocks: an engine's own end waits for all workers, too. Where the coordinator is away it
        returns nobody, at once.
        """

    def close(self) -> None:
        """Says nothing more; what is open goes in arrival order."""
