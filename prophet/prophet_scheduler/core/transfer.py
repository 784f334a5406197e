"""A transfer that has come to its end, as a value: what a record of a run is read into."""

from __future__ import annotations

from dataclasses import dataclass

from prophet_scheduler.core.events import QueueKind


@dataclass(frozen=True)
class Transfer:
    """One partition in one direction: ready at `added_s`, on the wire from `start_s`, done at `finish_s`.

    Seconds on the run's steady clock; `size_bytes` is 0 where the record has no sizes.
    """

    gradient: int
    partition: int
    size_bytes: int
    queue: QueueKind
    added_s: float
    start_s: float
    finish_s: float
