"""Values between a worker's front end and the coordinator's client (client.py).

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

from concurrent.futures import Future
from dataclasses import dataclass, field


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
