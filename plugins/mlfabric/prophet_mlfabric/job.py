"""A job at its coordinator: terms that are fixed at the start, counts, and workers.

Rule of this file: values and their checks. coordination.py changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from prophet_mlfabric.messages import Applied, Grant
from prophet_mlfabric.network import Node
from prophet_mlfabric.timetable import Push
from prophet_scheduler.core.errors import UserError


@dataclass(frozen=True)
class Terms:
    """Terms of a job's coordinator. Times in seconds, rates in bytes per second.

    `delay_bound` is tau_max, None for none. `divergence_bound` is Div_max, None without a replica. `server_rate` is the
    rate of the parameter server's NIC (None: `rate`). A worker's NIC has `rate` until its pushes show another. Raises
    UserError for impossible values.
    """

    delay_bound: int | None = None
    rate: float = 1.25e9
    server_rate: float | None = None
    batch_s: float = 0.1
    dead_s: float = 10.0
    lease_s: float = 30.0
    most_workers: int = 4096
    most_waiting: int = 16384
    divergence_bound: float | None = None

    def __post_init__(self) -> None:
        if self.delay_bound is not None and self.delay_bound < 1:
            raise UserError(f"--delay-bound {self.delay_bound}: an update has a delay of 1 even alone; give 1 or more")
        if self.divergence_bound is not None and not 0 < self.divergence_bound < math.inf:
            raise UserError(f"--divergence-bound {self.divergence_bound:g}: it is a norm; give a number above 0")


@dataclass
class Counts:
    """Outcomes of a job's updates so far. `greatest_delay` is that of Eq. 9, of the updates with a grant."""

    applied: int = 0
    dropped: int = 0
    lost: int = 0
    """Updates that were asked for and not reported; a late report counts as applied."""
    ungranted: int = 0
    """Applied updates that went without a grant."""
    refused: int = 0
    died: int = 0
    greatest_delay: int = 0


@dataclass
class JobWorker:
    """A worker that has joined."""

    number: int
    incarnation: int
    heard_s: float
    replicates: bool
    node: Node = -1
    connected: bool = True
    alive: bool = True
    ended: bool = False
    open: dict[int, Push] = field(default_factory=dict)
    finished: dict[int, Applied | Grant] = field(default_factory=dict)
    """Last answers about the newest finished updates."""
    forgotten: int = 0
    """Updates below this number are finished, and their outcomes are no longer known."""
