"""Runs of an experiment's cells.

Rule of this file: values only; the runner and the simulator create them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.jobs.record import WorkerRecord

EVENTS_FILE, STATUS_FILE, PROFILE_FILE = "events.npz", "status.json", "profile.json"
"""Names of Prophet's files for a worker, after the worker's own name."""
WORKER = "worker0"
"""Worker that reports show; the others do much the same at the same time."""


@dataclass(frozen=True)
class Run:
    """One job under one policy. `workers` are the workers' results, empty if the job failed.

    `statuses` are Prophet's, by worker. `error` is one line; with it, `log_tail` has the last lines of each role.
    """

    folder: Path
    workers: tuple[WorkerRecord, ...] = ()
    statuses: tuple[AgentStatus, ...] = ()
    error: str | None = None
    log_tail: Mapping[str, Sequence[str]] = field(default_factory=dict)
    processor_utilisation: float | None = None
    """Share of time in which a simulated worker computes; None for a real run."""
    ended_after_s: float | None = None
    """Seconds from the start of the first fault to the failure; None without a fault or a failure."""
    recut_s: float | None = None
    """Time of the last change of blocks, on the clock of the workers' marks; None if none is known."""


@dataclass(frozen=True)
class CellRuns:
    """All runs of a cell: `runs[name][i]` is policy `name` in repeat i.

    The testbed measured `links` (bits per second) and `round_trips` (seconds) before the runs.
    """

    cell: Cell
    links: Mapping[str, float]
    runs: Mapping[str, Sequence[Run]]
    simulated: bool = False
    round_trips: Mapping[str, float] = field(default_factory=dict)
