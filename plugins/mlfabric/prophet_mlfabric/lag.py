"""Lag of a running job's replica behind its server, and the times of its copies (MLfabric, sections 3.3 and 5.3).

Rule of this file: norms, copies that were ordered and how they went in; whether an update may go, and whether a copy is
due, out. Updates and workers are coordination.py's, the bytes of a copy a worker's.

A real server only adds: momentum is in the updates. So Eq. 11 is with g = 0, and server and replica are apart by at
most the norms of the updates that one has and the other has not, in any order. A copy is a whole version of the model,
read after it was ordered. So it has all updates that were counted before, and what the replica may lack is counted from
there: what has been applied since, what may have been though nobody says so, and what is under way to the server. An
update goes where that and its own norm stay within Div_max; where they do not it waits for a copy, and all behind it.

One update that alone is above Div_max goes when the replica lacks nothing else. While no copy reaches the replica,
nobody waits for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ROUNDING = 1e-12
"""Relative tolerance of sums of norms: a bound that is met exactly is met."""
RETRY_S = 5.0
"""Seconds until another copy is tried where one did not reach the replica."""
EARLY = 0.5
"""A copy is ordered when the replica may lack this part of the bound, so that as a rule nobody has to wait for it."""


@dataclass(frozen=True)
class CopyOrder:
    """Worker `worker` is to hand on the model; `changed` is the sum of norms when that was decided."""

    number: int
    worker: int
    changed: float


class ReplicaLag:
    """Account of what the replica of one job may lack. Norms are Euclidean, of updates; times in seconds."""

    def __init__(self, bound: float, first_number: int = 0) -> None:
        """`bound` is Div_max, above 0. Copies are numbered from `first_number`."""
        self.bound = bound
        self.notices: list[str] = []
        """Lines for whoever runs the job, in order; who says them takes them out."""
        self.copies = self.failed = 0
        """Copies that the replica has kept, and those that did not reach it."""
        self.greatest = 0.0
        """The most that the replica may have lacked at any time while it was reached."""
        self.order: CopyOrder | None = None
        """The copy that is under way."""
        self._changed = 0.0
        self._kept: float | None = None
        """That sum when the replica's newest copy was ordered."""
        self._number = first_number
        self._away = self._told_size = False
        self._retry_s = -math.inf
        self._last_worker = -1

    def begin(self) -> None:
        """Another job: nothing is known of what the replica has."""
        self.order = self._kept = None
        self._away = self._told_size = False
        self._retry_s = -math.inf

    @property
    def lag(self) -> float:
        """Greatest lag of the replica behind what was counted; infinite before the first copy."""
        return math.inf if self._kept is None else self._changed - self._kept

    def changed(self, norm: float) -> None:
        """The server's model has an update of this norm, or may have it."""
        self._changed += norm

    def admits(self, norm: float, under_way: float) -> bool:
        """Return True if an update or a sum of this norm may go, with so much under way to the server. It then does."""
        if self._away:
            return True
        lacks = self.lag + under_way
        alone = lacks == 0.0 and norm > self.bound
        if not alone and lacks + norm > self.bound * (1 + ROUNDING):
            return False
        if alone and not self._told_size:
            self._told_size = True
            self.notices.append(
                f"an update has the norm {norm:.3g}, which alone is above the divergence bound {self.bound:g}: "
                "it goes by itself, and so much may be lost"
            )
        self.greatest = max(self.greatest, lacks + norm)
        return True

    def due(self, waits: bool, now_s: float) -> bool:
        """Return True if a copy is to be ordered; `waits`: there is an update that may not go."""
        if self.order is not None or now_s < self._retry_s:
            return False
        return self.lag >= EARLY * self.bound or (waits and self.lag > 0.0)

    def ordered(self, worker: int) -> CopyOrder:
        """The copy is this worker's to make."""
        self.order = CopyOrder(self._number, worker, self._changed)
        self._number += 1
        self._last_worker = worker
        return self.order

    def turns(self, worker: int) -> tuple[bool, int]:
        """A key that sorts workers: whose turn is next comes first."""
        return worker <= self._last_worker, worker

    def answered(self, number: int, worker: int, reason: str, now_s: float) -> None:
        """A copy is kept, or did not get there for `reason`. What was ordered of somebody else changes nothing."""
        order = self.order
        if order is None or (order.number, order.worker) != (number, worker):
            return
        self.order = None
        if reason:
            self.failed += 1
            self._retry_s = now_s + RETRY_S
            if not self._away:
                self._away = True
                self.notices.append(f"no copy of the model reaches the replica ({reason}): updates go on without it")
            return
        self.copies += 1
        self._kept = order.changed
        if self._away:
            self._away = False
            self.notices.append("the replica has a copy of the model again")

    def gone(self, worker: int) -> None:
        """It will make no copy any more."""
        if self.order is not None and self.order.worker == worker:
            self.order = None
