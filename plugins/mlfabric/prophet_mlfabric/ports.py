"""Values between a worker's front end and the coordinator's client (client.py).

A worker's round, in this order:

    asking = coordinator.ask(size_bytes, version, norm)     # returns at once
    permission = asking.permission.result()                 # returns when the update may start; always returns
    if not permission.goes: discard the update, pull, compute from there
    push all its blocks to the server (or send it to worker permission.aggregator at permission.address)
    outcome = coordinator.done(asking, size_bytes).result() # the server has all of it (not called by a sum's members)
    pull; the model now has at least outcome.version updates

The next `ask` passes this `outcome.version` as its `version` if the pull began after it, or `permission.version` if
pulls began earlier. So the coordinator never takes an update for fresher than it is, and the delay bound holds.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Permission:
    """Decision about an update or, with `sum`, about the sum of that number. It arrives when the update may start.

    `goes` is False if the update is dropped, for `reason`, before it costs a byte. `aggregator` is the worker to send
    it to, at `address`; None for the server. The server's model had at least `version` updates at the decision.
    `coordinated` is False if the coordinator is away or slow: the update then goes in arrival order.
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
    """Outcome of an update or a sum that was sent.

    `applied` is True if it is in the server's model, which then had `version` updates. `delay` is its delay in
    versions; None if the coordinator was away, since nobody counted. If it was lost with its aggregator, `reason` says
    so: it will never be applied, and may be computed again.
    """

    update: int
    applied: bool
    version: int
    delay: int | None
    reason: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Pass:
    """Permission to read the model after `rounds` rounds; `coordinated` is True if the bound on leads allows it."""

    rounds: int
    coordinated: bool


@dataclass(frozen=True)
class Asking:
    """A request to send an update: its `permission`, and its `outcome` once it is applied or lost.

    Both futures always complete: without a coordinator, `permission` after the client's bound and `outcome` at `done`.
    """

    update: int
    permission: Future[Permission] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)
