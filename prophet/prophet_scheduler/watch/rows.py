"""Lines of a job's record, which each worker writes under PROPHET_RECORD while it trains, one JSON object per line.

Rule of this file: immutable values, one per kind of line, and when to write them. recorder.py writes the file, and
lab/report/from_record.py reads and checks it. Times are seconds of the worker's steady clock; the first line gives its
zero in Unix time. Sizes are bytes, rates bytes per second. Keys and kinds are only added.

The record of a long job stays bounded. Plans, cuts and profiles are written when they change, which is rare. The longer
the job lasts, the more turns a line of rates, waits or iterations summarizes. Transfers are written in full during
short moments, which become rarer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.watch.status import WorkerName

RECORD_SCHEMA: Literal[1] = 1

MOST_RECORD_BYTES = 64 << 20
"""Maximum size of one worker's file. Lines beyond it are dropped, except the last ones."""
END_BYTES = 1 << 20
"""Space reserved for the last lines."""
MOST_TRANSFERS_A_LINE = 4000
LEAST_MOMENT_S, MOST_MOMENT_S = 1.0, 20.0
ITERATIONS_A_MOMENT = 2.5
MOST_WAITS_A_LINE = 64
"""Maximum number of gradients in a line of waits, those with the longest waits."""
MOMENTS_BEFORE_SELDOMER = 8
"""Number of moments after which the interval between moments doubles."""
MOST_BETWEEN_MOMENTS_S = 600.0
LEAST_LINE_S = 0.9
"""Minimum time in a line of rates: just below a regular turn."""
LINES_BEFORE_SELDOMER = 600
"""Number of lines after which the time per line doubles."""


@dataclass(frozen=True)
class BeginRow:
    """First line. `unix_s` is the steady clock's 0 in Unix time. `settings` are the variables that configure the job
    and Prophet."""

    worker: WorkerName
    unix_s: float
    began_s: float
    version: str
    command: tuple[str, ...] = ()
    settings: dict[str, str] | None = None
    all_reduce: bool = False
    kind: Literal["begin"] = "begin"
    schema: Literal[1] = RECORD_SCHEMA


@dataclass(frozen=True)
class IterationsRow:
    """`count` iterations that ended at `ends_s`, after `before` earlier ones. If they are very many, `ends_s` has only
    the first and the last. None in `ends_s` is a pause; the time from there to the next end does not count."""

    before: int
    count: int
    ends_s: tuple[float | None, ...]
    kind: Literal["iterations"] = "iterations"


@dataclass(frozen=True)
class RatesRow:
    """Bytes each way from `from_s` to `until_s`, and the seconds with at least one transfer in flight."""

    from_s: float
    until_s: float
    sent_bytes: int
    received_bytes: int
    sending_s: float
    receiving_s: float
    kind: Literal["rates"] = "rates"


@dataclass(frozen=True)
class NetworkRow:
    """Measured rate, overhead and delay of the worker's link."""

    time_s: float
    network: Network
    kind: Literal["network"] = "network"


@dataclass(frozen=True)
class ProfileRow:
    """Learned profile of the job, as columns of equal length with an entry for each gradient or block in forward order.

    The columns are ids as in transfers, bytes as sent, generation times after backward began, and forward times of
    layers. Workers that do not learn have no such line. `half` and `barrier` are as in the status (core/status.py).
    """

    time_s: float
    gradient: tuple[int, ...]
    bytes: tuple[int, ...]
    generation_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    half: bool = False
    barrier: bool = False
    kind: Literal["profile"] = "profile"


@dataclass(frozen=True)
class TransfersRow:
    """All transfers that finished from `from_s` to `until_s`, as columns of equal length, ordered by start.

    `queue` is 0 for a push, 1 for a pull. Times are seconds after `from_s`. `left_out` more transfers are missing.
    With `arena`, a gradient's id is a place in the arena (core/cut.py).
    """

    from_s: float
    until_s: float
    gradient: tuple[int, ...]
    partition: tuple[int, ...]
    queue: tuple[int, ...]
    bytes: tuple[int, ...]
    added_s: tuple[float, ...]
    start_s: tuple[float, ...]
    finish_s: tuple[float, ...]
    left_out: int = 0
    arena: bool = True
    kind: Literal["transfers"] = "transfers"


@dataclass(frozen=True)
class WaitsRow:
    """Seconds for which the program waited for each gradient since the last such line; `others_s` for all others."""

    until_s: float
    waited_s: dict[str, float]
    others_s: float = 0.0
    kind: Literal["waits"] = "waits"


@dataclass(frozen=True)
class PlanRow:
    """Adoption of plan `number` after the first. `predicted_s` is the predicted iteration time with blocks of `cut`,
    `stock_s` that with the engine's own order; None without a prediction."""

    time_s: float
    number: int
    push_credit: int | None
    pull_credit: int | None
    deadlines: int
    predicted_s: float | None = None
    stock_s: float | None = None
    cut: tuple[Segment, ...] = ()
    kind: Literal["plan"] = "plan"


@dataclass(frozen=True)
class CutRow:
    """Change `number` of the cut, as observed. `reason` is empty on workers that do not decide."""

    time_s: float
    number: int
    segments: tuple[Segment, ...]
    reason: str = ""
    kind: Literal["cut"] = "cut"


@dataclass(frozen=True)
class EndRow:
    """Last line: the final status. `dropped` lines did not fit into the file."""

    time_s: float
    iterations: int
    agent: AgentStatus
    watch_cpu_s: float
    dropped: int = 0
    kind: Literal["end"] = "end"


RecordRow = (
    BeginRow | IterationsRow | RatesRow | NetworkRow | ProfileRow | TransfersRow | WaitsRow | PlanRow | CutRow | EndRow
)


class Rarely:
    """Schedule that becomes rarer: the interval doubles after every `uses` uses, up to `most_s`."""

    def __init__(self, every_s: float, uses: int, most_s: float = math.inf) -> None:
        self._every_s, self._most_s = every_s, most_s
        self._uses, self._left = uses, uses
        self._next_s = -math.inf

    def due(self, now: float, lasts_s: float = 0.0) -> bool:
        """Return True if a use is due now, which takes `lasts_s`."""
        if now < self._next_s:
            return False
        self._left -= 1
        if self._left == 0:
            self._left, self._every_s = self._uses, min(2 * self._every_s, self._most_s)
        self._next_s = now + lasts_s + self._every_s
        return True


class Moments:
    """Moments in which transfers are written: often at first and after each change of the cut, then more rarely.

    A moment is a few consecutive turns that cover about two whole iterations.
    """

    def __init__(self) -> None:
        self._until_s = -math.inf
        self._schedule = self._anew()

    def due(self, now: float, changed: bool, iteration_s: float | None = None) -> bool:
        """Return True if this turn's transfers are due. `changed`: the cut changed since the last turn."""
        if changed:
            self._schedule = self._anew()
        if now <= self._until_s:
            return True
        lasts_s = min(max(LEAST_MOMENT_S, ITERATIONS_A_MOMENT * (iteration_s or 0.0)), MOST_MOMENT_S)
        if not self._schedule.due(now, lasts_s):
            return False
        self._until_s = now + lasts_s
        return True

    @staticmethod
    def _anew() -> Rarely:
        return Rarely(1.0, MOMENTS_BEFORE_SELDOMER, MOST_BETWEEN_MOMENTS_S)
