"""Values between a worker's front end and the coordinator's client (client.py).

A worker's round, in this order:

    asking = coordinator.ask(size_bytes, version, norm)     # at once; the update's gradients may still be moving
    permission = asking.permission.result()                 # ends when it may start, and always ends
    if not permission.goes: discard the update, pull, compute from there
    push all blocks of it to the server (or send it to worker permission.aggregator at permission.address)
    outcome = coordinator.done(asking, size_bytes).result() # the server has all of it (a member of a sum: not called)
    pull; what is pulled from now on holds at least outcome.version updates

`version` of the next `ask` is that `outcome.version` if the pull began after it, and `permission.version` if pulls
began before. So the coordinator never takes an update for fresher than it is, and the delay bound holds.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Permission:
    """Decision about an update or, with `sum`, about the sum of that number. It comes when the update may start.

    `goes` is False if the update is dropped, for `reason`, before it costs a byte. `aggregator` is the worker to send
    it to, at `address`; None for the server. The server's model then had at least `version` updates. `coordinated` is
    False if the coordinator is away or slow, and the update goes in arrival order.
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
    """End of an update or a sum that went.

    `applied` is True if it is in the server's model, which then had `version` updates, after a delay of `delay`
    versions (None if the coordinator is away, since nobody counted). If it was lost with its aggregator, `reason` says
    so: it will never be applied, and may be computed anew.
    """

    update: int
    applied: bool
    version: int
    delay: int | None
    reason: str = ""
    sum: bool = False


@dataclass(frozen=True)
class Pass:
    """Permission to read the model after so many rounds; `coordinated` is True if the bound on leads allows it."""

    rounds: int
    coordinated: bool


@dataclass(frozen=True)
class Asking:
    """An update that was asked for: its `permission`, and its `outcome` once it is applied or lost.

    Both always end: without a coordinator `permission` after the client's bound, and `outcome` at `done`.
    """

    update: int
    permission: Future[Permission] = field(default_factory=Future)
    outcome: Future[Outcome] = field(default_factory=Future)
