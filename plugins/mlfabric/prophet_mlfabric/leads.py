"""Bound on the lead of a job's workers (MLfabric, section 6): stale synchronous training, and training in step.

Rule of this file: finished rounds and read models in, permission to continue out. coordination.py tells the workers.

A worker that has finished c rounds may read the next model once every other has finished at least c - K rounds; K is
the staleness (Ho et al., stale synchronous parallel, 2013). With K = 0 workers are in step, and all read the same
model: an update of the next round is held back from the server until every worker has read.

A worker that has not reported yet counts as in its first round until it is declared absent. Nobody waits for workers
that have ended or died.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping


class LeadBound:
    """Rounds and models of workers 0 to `workers` - 1. By default any lead is allowed."""

    def __init__(self, staleness: float = math.inf, workers: int = 0) -> None:
        self.bounded = staleness < math.inf
        self._staleness = staleness
        self._rounds = dict.fromkeys(range(workers), 0)
        self._models = dict.fromkeys(range(workers), 0)
        self._gone: set[int] = set()

    def heard(self, worker: int, rounds: int, models: int) -> None:
        """Record a worker's numbers of finished rounds and of read models, the first ones included."""
        self._rounds[worker], self._models[worker] = rounds, models

    def lives(self, worker: int) -> None:
        """Have others wait for a worker, perhaps again."""
        self._gone.discard(worker)

    def gone(self, worker: int) -> None:
        """Have nobody wait for a worker, until `lives`."""
        self._gone.add(worker)

    def absent(self, heard: Container[int]) -> None:
        """Have nobody wait for workers other than `heard`: they may have ended under another coordinator."""
        self._gone.update(worker for worker in self._rounds if worker not in heard)

    def waits(self, worker: int) -> bool:
        """Return True if a worker has finished a round but not read the next model."""
        return 0 < self._rounds.get(worker, 0) == self._models.get(worker, 0)

    def may_read(self, worker: int) -> bool:
        """Return True if a worker may read the next model."""
        return self._rounds.get(worker, 0) - self._least(self._rounds) <= self._staleness

    def may_send(self, worker: int) -> bool:
        """Return True if an update of a worker's current round may reach the server."""
        return self._staleness > 0 or self._least(self._models) > self._rounds.get(worker, 0)

    def _least(self, counts: Mapping[int, int]) -> int:
        return min((count for worker, count in counts.items() if worker not in self._gone), default=0)
