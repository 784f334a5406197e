"""Runs of an experiment's cells.

Rule of this file: values only; the runner and the simulator make them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.records import TunedSizes
from prophet_scheduler.lab.testbed import RelayReport
from prophet_scheduler.simulate.measures import Measures

EVENTS_FILE, STATUS_FILE, PROFILE_FILE = "events.npz", "status.json", "profile.json"
"""Endings of the names of Prophet's files for a worker, after the worker's own name."""


@dataclass(frozen=True)
class Run:
    """One job under one policy. `workers` are the results of its workers, empty if it failed.

    `statuses` are Prophet's in the workers. `error` is one line; `log_tail` then has the last lines of each role.
    """

    folder: Path
    workers: tuple[WorkerRecord, ...] = ()
    statuses: tuple[AgentStatus, ...] = ()
    error: str | None = None
    log_tail: Mapping[str, Sequence[str]] = field(default_factory=dict)
    measures: Measures | None = None
    """Measures that only a simulation has."""
    ended_after_s: float | None = None
    """Seconds from the beginning of the first fault to the failure; None without a fault or a failure."""
    tuning: TunedSizes | None = None
    """Sizes that a search chose, if the policy was tuned."""
    recut_s: float | None = None
    """Time of the last change of blocks, on the clock of the workers' marks; None if there was none or if unknown."""


@dataclass(frozen=True)
class CellRuns:
    """All runs of a cell: `runs[name][i]` is policy `name` in repeat i. `recordings` are short runs for the figures, of
    policies that their engine's own trace can show; their times do not count, since a trace costs time.

    The testbed measured `links` (bits per second) and `round_trips` (seconds) before the runs; `relays` are the reports
    of delayed links during them.
    """

    cell: Cell
    links: Mapping[str, float]
    runs: Mapping[str, Sequence[Run]]
    recordings: Mapping[str, Run] = field(default_factory=dict)
    simulated: bool = False
    round_trips: Mapping[str, float] = field(default_factory=dict)
    relays: Mapping[str, RelayReport] = field(default_factory=dict)
