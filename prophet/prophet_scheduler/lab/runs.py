"""What an experiment leaves: the runs of each cell, for whoever counts or draws them.

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
"""How the names of the files end that Prophet leaves in a worker, after the worker's own."""


@dataclass(frozen=True)
class Run:
    """One job under one policy. `workers` are the results of its workers, empty where it failed.

    `statuses` are what Prophet wrote in the workers; `error` is one line, and `log_tail` then has the
    last lines of each role.
    """

    folder: Path
    workers: tuple[WorkerRecord, ...] = ()
    statuses: tuple[AgentStatus, ...] = ()
    error: str | None = None
    log_tail: Mapping[str, Sequence[str]] = field(default_factory=dict)
    measures: Measures | None = None
    """What only a simulation can measure."""
    ended_after_s: float | None = None
    """Seconds from the beginning of the first fault to the failure; None where there was none of either."""
    tuning: TunedSizes | None = None
    """What a search chose, where the policy was tuned."""
    recut_s: float | None = None
    """When blocks last changed, on the clock of the workers' marks; None where they never did, or nobody says."""


@dataclass(frozen=True)
class CellRuns:
    """All runs of a cell: `runs[name][i]` is policy `name` in repeat i.

    `links` (bits per second) and `round_trips` (seconds) are what the testbed measured before them, and `relays` what
    delayed links did during them.

    `recordings` are short runs of the policies that their engine's own trace can show, with it on, for the
    figures; nothing in them is counted, since a trace costs time.
    """

    cell: Cell
    links: Mapping[str, float]
    runs: Mapping[str, Sequence[Run]]
    recordings: Mapping[str, Run] = field(default_factory=dict)
    simulated: bool = False
    round_trips: Mapping[str, float] = field(default_factory=dict)
    relays: Mapping[str, RelayReport] = field(default_factory=dict)
