"""File that a job leaves for the runner: each worker's result.

Rule of this file: immutable values and their JSON, for any framework; it imports only packages that every training
script has. The runner validates the results (lab/records.py). Times are seconds on the monotonic clock.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.core.files import write_whole


def progress_path(out: Path) -> Path:
    """Return the path of the progress file beside a job's result; it gains one line per iteration."""
    return out.with_suffix(".progress")


@dataclass(frozen=True)
class Mark:
    """Times when an iteration's forward and backward passes began, and when the host had issued the backward pass."""

    start: float
    backward: float
    backward_end: float


@dataclass
class Convergence:
    """Losses of a worker's model over time and, in asynchronous training, the fate of the worker's updates.

    At `times_s[i]`, on the clock of the marks, the weights had the loss `losses[i]`. In asynchronous training they had
    the version `versions[i]`: the number of updates, from all workers, that they include. Counts of the worker's own
    updates: `sent` to the server, `uncoordinated` among these without a coordinator's grant, `dropped` never sent,
    `applied` by the server. `greatest_delay` is in versions (Eq. 9 of MLfabric).
    """

    times_s: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    sent: int | None = None
    dropped: int | None = None
    uncoordinated: int | None = None
    applied: int | None = None
    greatest_delay: int | None = None

    def keep(self, time_s: float, loss: float, version: int | None) -> None:
        """Record a loss, unless it is not finite (the model diverged): JSON cannot hold it."""
        if not math.isfinite(loss):
            return
        self.times_s.append(time_s)
        self.losses.append(loss)
        if version is not None:
            self.versions.append(version)


@dataclass(frozen=True)
class WorkerRecord:
    """Result of one worker. `iteration_s` has one entry fewer than `marks`: the last iteration has no end.

    `start_s` is the time from process start to the end of the first iteration. `resident_bytes` is the resident memory
    after each iteration, `processor_s` the CPU time of all threads up to then. `wall_minus_steady_s` is the wall clock
    minus the monotonic clock, needed to read a trace of BytePS. A simulated worker has only times. Only a job that is
    tested has an `accuracy`, and only one that records loss against time a `convergence`.
    """

    iteration_s: list[float]
    marks: list[Mark]
    start_s: float | None = None
    resident_bytes: list[int] = dataclasses.field(default_factory=list)
    wall_minus_steady_s: float = 0.0
    parameters: list[str] = dataclasses.field(default_factory=list)
    weights_sha256: str | None = None
    rank: int = 0
    accuracy: float | None = None
    parameter_bytes: list[int] = dataclasses.field(default_factory=list)
    processor_s: list[float] = dataclasses.field(default_factory=list)
    convergence: Convergence | None = None


def write_record(record: WorkerRecord, path: Path) -> None:
    """Write `record` as JSON, completely or not at all, without fields that are None."""
    content = {name: value for name, value in dataclasses.asdict(record).items() if value is not None}
    write_whole(json.dumps(content), path)
