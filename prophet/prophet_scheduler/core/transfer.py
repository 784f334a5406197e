"""A finished transfer, as read from the record of a run."""

from __future__ import annotations

from dataclasses import dataclass

from prophet_scheduler.core.events import QueueKind


@dataclass(frozen=True)
class Transfer:
    """One partition in one direction: ready at `added_s`, on the wire from `start_s`, done at `finish_s`.

    Times are seconds on the run's steady clock. `size_bytes` is 0 if the record has no sizes.
    """

    gradient: int
    partition: int
    size_bytes: int
    queue: QueueKind
    added_s: float
    start_s: float
    finish_s: float
