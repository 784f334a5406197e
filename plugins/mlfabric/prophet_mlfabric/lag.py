"""Lag of a running job's replica behind its server, and the times of its copies (MLfabric, sections 3.3 and 5.3).

Rule of this file: norms, ordered copies and their outcomes in; whether an update may go, and whether a copy is due,
out. coordination.py has the updates and workers, and a worker has the bytes of a copy.

A real server only adds: momentum is in the updates. So Eq. 11 holds with g = 0, and server and replica differ by at
most the sum of the norms of the updates that only one of them has, in any order. A copy has all updates counted before
it was ordered. The replica may lack updates applied since then, perhaps unreported, and updates in flight to the
server. An update may go if these norms and its own stay within Div_max. Otherwise it and later ones wait for a copy.

A single update above Div_max goes when the replica lacks nothing else. Nobody waits for a replica that no copy reaches.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from prophet_mlfabric.replication import ROUNDING

RETRY_S = 5.0
"""Seconds until the next attempt after a copy that did not reach the replica."""
EARLY = 0.5
"""Fraction of the bound at which a copy is ordered, so that updates rarely have to wait."""


class CopyOrder(NamedTuple):
    """Order of a copy from worker `worker`; `changed` is the sum of norms when it was given."""

    number: int
    worker: int
    changed: float


class ReplicaLag:
    """Sum of the norms that one job's replica may lack. Norms are Euclidean, of updates; times in seconds."""

    def __init__(self, bound: float, first_number: int = 0) -> None:
        """`bound` is Div_max, above 0. Copies are numbered from `first_number`."""
        self.bound, self.bounded = bound, bound < math.inf
        self.notices: list[str] = []
        """Lines for the operator, in order; whoever prints them removes them."""
        self.copies = self.failed = 0
        """Number of copies that the replica has stored, and of those that failed."""
        self.greatest = 0.0
        """Maximum lag so far while the replica was reachable."""
        self._changed = 0.0
        self._number = first_number
        self.begin()

    def begin(self) -> None:
        """Begin another job: the replica's content is unknown."""
        self.order: CopyOrder | None = None
        """Order of the copy being made."""
        self._kept: float | None = None
        """Sum of norms when the replica's newest copy was ordered."""
        self._away = self._noticed_size = self._waits = False
        self._retry_s = -math.inf

    @property
    def lag(self) -> float:
        """Maximum lag of the replica behind the counted updates; infinite before the first copy."""
        return math.inf if self._kept is None else self._changed - self._kept

    def changed(self, norm: float) -> None:
        """Record that the server's model has, or may have, an update of this norm."""
        self._changed += norm

    def admits(self, norm: float, under_way: float) -> bool:
        """Return True if an update of this norm may go with `under_way` norms in flight. The caller then starts it."""
        if self._away:
            return True
        lacks = self.lag + under_way
        alone = lacks == 0.0 and norm > self.bound
        if not alone and lacks + norm > self.bound * (1 + ROUNDING):
            self._waits = True
            return False
        if alone and not self._noticed_size:
            self._noticed_size = True
            self.notices.append(
                f"an update has the norm {norm:.3g}, which alone is above the divergence bound {self.bound:g}: "
                "it goes alone, and that much may be lost"
            )
        self.greatest = max(self.greatest, lacks + norm)
        return True

    def due(self, now_s: float) -> bool:
        """Return True if a copy should be ordered: soon, or now if an update was not admitted since the last call."""
        waits, self._waits = self._waits, False
        if self.order is not None or now_s < self._retry_s:
            return False
        return self.lag >= EARLY * self.bound or (waits and self.lag > 0.0)

    def ordered(self, worker: int) -> None:
        """Record that this worker makes the next copy."""
        self.order = CopyOrder(self._number, worker, self._changed)
        self._number += 1

    def answered(self, number: int, worker: int, reason: str, now_s: float) -> None:
        """Record that a copy is stored or, with `reason`, has failed. Answers to other orders change nothing."""
        order = self.order
        if order is None or order[:2] != (number, worker):
            return
        self.order = None
        was_away, self._away = self._away, bool(reason)
        if reason:
            self.failed += 1
            self._retry_s = now_s + RETRY_S
            if not was_away:
                self.notices.append(f"no copy of the model reaches the replica ({reason}): updates go on without it")
            return
        self.copies += 1
        self._kept = order.changed
        if was_away:
            self.notices.append("the replica has a copy of the model again")

    def gone(self, worker: int) -> None:
        """Record that a worker makes no more copies."""
        if self.order is not None and self.order.worker == worker:
            self.order = None
