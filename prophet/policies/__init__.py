"""The policies by name. One file a system; docs/adding-a-policy.md says how to add one."""

from __future__ import annotations

from collections.abc import Callable

from prophet.core.errors import UserError
from prophet.core.policy import Policy
from prophet.core.settings import DEFAULT_CREDIT_BYTES, DEFAULT_PARTITION_BYTES
from prophet.policies.bytescheduler import ByteScheduler
from prophet.policies.caramel import Caramel
from prophet.policies.fifo import Fifo
from prophet.policies.fusion_buckets import Ddp, Horovod
from prophet.policies.mgwfbp import MgWfbp
from prophet.policies.p3 import P3
from prophet.policies.pace import Pace
from prophet.policies.prophet import Prophet
from prophet.policies.tictac import TicTac

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
