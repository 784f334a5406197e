"""A job at its coordinator: terms that are fixed at the start, counts, workers and open updates.

Rule of this file: values, their checks, and what is derived from them. coordination.py changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from prophet_mlfabric.leads import LeadBound
from prophet_mlfabric.messages import Applied, Ask, Grant, Hello, Lost
from prophet_mlfabric.network import Node
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.scheduler import PlannedTransfer
from prophet_scheduler.core.errors import UserError


@dataclass(frozen=True)
class Terms:
    """Terms of a job's coordinator. Times in seconds, rates in bytes per second.

    `delay_bound` is tau_max, None for none. `divergence_bound` is Div_max, None without a replica. `server` is the
    parameter server's node. It does not report its rate, so `server_rate` holds in both directions (None: `rate`).
    `rate` holds for each other node, in both directions, until it reports. Raises UserError for impossible values.
    """

    delay_bound: int | None = None
    server: str = "server"
    rate: float = 1.25e9
    server_rate: float | None = None
    batch_s: float = 0.1
    dead_s: float = 10.0
    lease_s: float = 30.0
    most_workers: int = 4096
    most_waiting: int = 16384
    divergence_bound: float | None = None

    def __post_init__(self) -> None:
        if self.delay_bound is not None and self.delay_bound < 1:
            raise UserError(f"--delay-bound {self.delay_bound}: an update has a delay of 1 even alone; give 1 or more")
        if self.divergence_bound is not None and not 0 < self.divergence_bound < math.inf:
            raise UserError(f"--divergence-bound {self.divergence_bound:g}: it is a norm; give a number above 0")
        if not self.server:
            raise UserError("--server is empty; give the name that the parameter server's NIC has among the nodes")
        numbers = self.rate, self.dead_s, self.lease_s, self.rate if self.server_rate is None else self.server_rate
        if not all(0 < number < math.inf for number in numbers):
            raise UserError("a rate or time of a coordinator: give a number above 0")
        if not 0 <= self.batch_s < math.inf or self.most_workers < 1 or self.most_waiting < 1:
            raise UserError("batch_s, most_workers and most_waiting of a coordinator: give 0 or more, and 1 or more")


@dataclass
class Counts:
    """Outcomes of a job's updates so far. Delays as in Eq. 9, the greatest of each kind; sizes in bytes."""

    applied: int = 0
    applied_bytes: int = 0
    dropped: int = 0
    lost: int = 0
    ungranted: int = 0
    """Applied updates that went without a grant."""
    sums: int = 0
    batches: int = 0
    refused: int = 0
    died: int = 0
    greatest_delay: int = 0
    greatest_ungranted_delay: int = 0


@dataclass
class JobWorker:
    """A worker that has joined. `sums_at` is its address for updates to sum; None if it sums none."""

    number: int
    incarnation: int
    heard_s: float
    replicates: bool
    node: Node = -1
    sums_at: str | None = None
    alive: bool = True
    ended: bool = False
    open: dict[int, OpenUpdate] = field(default_factory=dict)
    finished: dict[int, Applied | Grant | Lost] = field(default_factory=dict)
    """Last answers about the newest finished updates."""
    forgotten: int = 0
    """Updates below this number are finished, and their outcomes are no longer known."""
    proceeds_at: int | None = None
    """Round after which it waits for others; None if it does not wait."""

    @property
    def sends(self) -> bool:
        """True if one of its updates may be in flight."""
        return any(entry.grant is not None for entry in self.open.values())


@dataclass(eq=False)
class OpenUpdate:
    """An update from its request to its end. `transfer` is None until its batch is decided."""

    worker: JobWorker
    ask: Ask
    update: Update
    asked_s: float
    transfer: PlannedTransfer | None = None
    collection: OpenCollection | None = None
    grant: Grant | None = None


@dataclass(eq=False)
class OpenCollection:
    """Updates for one worker to sum."""

    number: int
    aggregator: JobWorker
    transfer: PlannedTransfer
    members: list[OpenUpdate]
    grant: Grant | None = None


class Manner(NamedTuple):
    """Training mode, the same on all workers of a job: rounds by which a worker may lead, and number of workers."""

    staleness: int | None
    workers: int | None

    @classmethod
    def of(cls, hello: Hello) -> Manner:
        return cls(hello.staleness, None if hello.staleness is None else hello.workers)

    def __str__(self) -> str:
        if self.staleness is None:
            return "no PROPHET_STALENESS"
        return f"PROPHET_STALENESS {self.staleness} of {self.workers} workers"


@dataclass
class CoordinatedJob:
    """State of one job; another job, with another model, gets a new one.

    `version` counts the updates applied (Eq. 9). `base` is the newest version that workers know from earlier
    coordinators. All workers have the same `manner`. `leads`, in use since `leads_since_s`, decides who may continue.
    """

    workers: dict[int, JobWorker] = field(default_factory=dict)
    version: int = 0
    base: int = 0
    manner: Manner | None = None
    leads: LeadBound = field(default_factory=LeadBound)
    leads_since_s: float = -math.inf
    left_behind: set[int] = field(default_factory=set)
    """Dead workers that the others were told not to wait for."""

    def replicating(self) -> list[JobWorker]:
        """Return the workers that can hand copies of the model to a replica."""
        return [worker for worker in self.workers.values() if worker.alive and worker.replicates]

    def aggregators(self, server: Node) -> dict[Node, JobWorker]:
        """Return the summing worker of each node but the server's; none unless all live workers take part in sums."""
        alive = [worker for worker in self.workers.values() if worker.alive]
        by_node: dict[Node, JobWorker] = {}
        if all(worker.sums_at for worker in alive):
            for worker in sorted(alive, key=lambda worker: worker.number):
                if worker.node != server:
                    by_node.setdefault(worker.node, worker)
        return by_node
