"""The policies by name. One file a system; docs/adding-a-policy.md says how to add one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prophet.errors import UserError
from prophet.model import Network, Plan, Profile
from prophet.policies.bytescheduler import ByteScheduler
from prophet.policies.caramel import Caramel
from prophet.policies.fifo import Fifo
from prophet.policies.fusion_buckets import Ddp, Horovod
from prophet.policies.mgwfbp import MgWfbp
from prophet.policies.p3 import P3
from prophet.policies.pace import Pace
from prophet.policies.prophet import Prophet
from prophet.policies.tictac import TicTac
from prophet.settings import DEFAULT_CREDIT_BYTES, DEFAULT_PARTITION_BYTES

MATERIAL_CHANGE = 0.10
"""A plan is swapped only for a change of more than a tenth in what it was made from."""
MATERIAL_SHIFT_S = 0.002
"""And for a deadline that moved by more than this, which is about how exact predictions are."""


class Policy(Protocol):
    """Turns what was learned into a plan. Knows no clock, thread or socket."""

    name: str

    def plan(self, profile: Profile | None, network: Network | None, jitter_s: float = 0.0) -> Plan:
        """The plan for a job; `profile` and `network` are None until they are known.

        `jitter_s` is how far generation times scatter between iterations, in seconds.
        """
        ...


POLICIES: dict[str, Callable[[int, int], Policy]] = {
    "fifo": lambda credit, partition: Fifo(),
    "p3": lambda credit, partition: P3(),
    "bytescheduler": lambda credit, partition: ByteScheduler(credit),
    "prophet": lambda credit, partition: Prophet(partition),
    "tictac": lambda credit, partition: TicTac(),
    "tictac-tio": lambda credit, partition: TicTac(timing_aware=False),
    "pace": lambda credit, partition: Pace(),
    "pace-best": lambda credit, partition: Pace(balanced=False),
    "caramel": lambda credit, partition: Caramel(),
    "caramel-no-holding": lambda credit, partition: Caramel(holding=False),
    "caramel-no-scheduling": lambda credit, partition: Caramel(scheduling=False),
    "caramel-no-batching-no-scheduling": lambda credit, partition: Caramel(batching=False, scheduling=False),
    "mg-wfbp": lambda credit, partition: MgWfbp(),
    "mg-wfbp-exact": lambda credit, partition: MgWfbp(exact=True),
    "ddp": lambda credit, partition: Ddp(),
    "horovod": lambda credit, partition: Horovod(),
}


def get_policy(
    name: str, credit_bytes: int = DEFAULT_CREDIT_BYTES, partition_bytes: int = DEFAULT_PARTITION_BYTES
) -> Policy:
    """The policy called `name`. Raises UserError listing the known ones."""
    if name not in POLICIES:
        raise UserError(f"unknown policy {name!r}; known policies are {', '.join(POLICIES)}")
    return POLICIES[name](credit_bytes, partition_bytes)


def plan_changed(old: Plan, new: Plan) -> bool:
    """Whether `new` differs from `old` enough to be worth a swap."""

    def moved(a: float | None, b: float | None) -> bool:
        if a is None or b is None:
            return a is not b
        return abs(a - b) > MATERIAL_CHANGE * max(abs(a), abs(b))

    for before, after in ((old.push, new.push), (old.pull, new.pull)):
        if (before.order, before.groups) != (after.order, after.groups) or moved(before.credit, after.credit):
            return True
        if [d.rank for d in before.deadlines] != [d.rank for d in after.deadlines]:
            return True
        pairs = zip(before.deadlines, after.deadlines, strict=True)
        if any(abs(a.time_s - b.time_s) > MATERIAL_SHIFT_S for a, b in pairs):
            return True
    rates = [plan.network.bandwidth if plan.network else None for plan in (old, new)]
    return moved(*rates)
