"""Memory of a job's coordinator: its workers, and the updates that are open.

Rule of this file: records, and what can be read off one of them. What happens to them is coordination.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from prophet_mlfabric.messages import Applied, Ask, Grant, Hello, Lost
from prophet_mlfabric.network import Node
from prophet_mlfabric.ordering import Update
from prophet_mlfabric.scheduler import PlannedTransfer


@dataclass
class JobWorker:
    """A worker that has said hello. `sums_at` is its address for updates to sum, None if it takes none."""

    number: int
    incarnation: int
    node: Node
    sums_at: str | None
    heard_s: float
    replicates: bool = False
    alive: bool = True
    ended: bool = False
    open: dict[int, OpenUpdate] = field(default_factory=dict)
    finished: dict[int, Applied | Grant | Lost] = field(default_factory=dict)
    """Last answers about the newest finished updates."""
    forgotten: int = 0
    """Updates below this number are finished, and how is not remembered."""
    proceeds_at: int | None = None
    """The round after which it waits for others."""

    @property
    def sends(self) -> bool:
        """True if anything of it may be on its way."""
        return any(entry.grant is not None for entry in self.open.values())


@dataclass(eq=False)
class OpenUpdate:
    """An update that was asked for and is not finished. Without a transfer it is in no batch yet."""

    worker: JobWorker
    ask: Ask
    update: Update
    asked_s: float
    transfer: PlannedTransfer | None = None
    collection: OpenCollection | None = None
    grant: Grant | None = None

    @property
    def may_be_applied(self) -> bool:
        """True if it may be at the server, by itself or in a sum, though nobody has said so."""
        if self.collection is None:
            return self.grant is not None
        return self.collection.grant is not None


@dataclass(eq=False)
class OpenCollection:
    """Updates that one worker is to sum."""

    number: int
    aggregator: JobWorker
    transfer: PlannedTransfer
    members: list[OpenUpdate]
    grant: Grant | None = None


def aggregators_of(workers: Iterable[JobWorker], server: Node) -> dict[Node, JobWorker]:
    """Return by node the worker there that sums, but for the server's; none unless all that live can send to one."""
    alive = [worker for worker in workers if worker.alive]
    by_node: dict[Node, JobWorker] = {}
    for worker in sorted(alive, key=lambda worker: worker.number) if all(worker.sums_at for worker in alive) else ():
        if worker.node != server:
            by_node.setdefault(worker.node, worker)
    return by_node


class Manner(NamedTuple):
    """Way of training, which all workers of a job have to say alike: the rounds by which one may lead, and how many
    they are."""

    staleness: int | None
    workers: int | None

    @classmethod
    def of(cls, hello: Hello) -> Manner:
        """Return what the sender of `hello` says of it."""
        return cls(hello.staleness, None if hello.staleness is None else hello.workers)

    def __str__(self) -> str:
        if self.staleness is None:
            return "no PROPHET_STALENESS"
        return f"PROPHET_STALENESS {self.staleness} of {self.workers} workers"
