"""A job's record: the lines that PROPHET_RECORD has each worker write while it trains, one JSON object a line.

Rule of this file: immutable values, one kind a line, and which of them are worth their bytes; the file is
recorder.py's, reading and checking lab/report/from_record.py's. Times are seconds of the worker's steady clock,
whose zero the first line says in Unix time; sizes are bytes, rates bytes per second. Keys and kinds are only added.

The record of a long job stays bounded. What changes seldom (plans, cuts, what was learned of the job) is written when
it does; rates, waits and iterations are summed up over more turns the longer the job lasts; transfers are written whole
for a moment, and the moments come more and more seldom.
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
"""Of one worker's file. What would make it larger is left out, but for its end."""
END_BYTES = 1 << 20
"""Kept free for the last lines."""
MOST_TRANSFERS_A_LINE = 4000
LEAST_MOMENT_S, MOST_MOMENT_S = 1.0, 20.0
ITERATIONS_A_MOMENT = 2.5
MOST_WAITS_A_LINE = 64
"""Gradients of a line of waits; the longest waits are kept."""
MOMENTS_BEFORE_SELDOMER = 8
"""After so many moments the next so many come half as often."""
MOST_BETWEEN_MOMENTS_S = 600.0
LEAST_LINE_S = 0.9
"""What a line of rates sums up at the least: a turn, but for some short ones."""
LINES_BEFORE_SELDOMER = 600
"""After so many lines each sums up twice as long."""


@dataclass(frozen=True)
class BeginRow:
    """The first line. `unix_s` is what the steady clock's 0 is in Unix time; `settings` are the variables by which the
    job and Prophet were set up."""

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
    """Iterations ended at `ends_s`; `before` had ended earlier. Where there are very many only their number is kept:
    `count` ended between the first and the last of `ends_s`. None in `ends_s` stands for a pause, after which the next
    period is none."""

    before: int
    count: int
    ends_s: tuple[float | None, ...]
    kind: Literal["iterations"] = "iterations"


@dataclass(frozen=True)
class RatesRow:
    """From `from_s` to `until_s`: bytes each way, and the seconds in which at least one transfer was in flight."""

    from_s: float
    until_s: float
    sent_bytes: int
    received_bytes: int
    sending_s: float
    receiving_s: float
    kind: Literal["rates"] = "rates"


@dataclass(frozen=True)
class NetworkRow:
    """The link as it was measured."""

    time_s: float
    network: Network
    kind: Literal["network"] = "network"


@dataclass(frozen=True)
class ProfileRow:
    """What was learned of the job, in columns of one length, in forward order: ids as transfers have them, bytes as
    they travel, when each is generated after backward began, and how long its layer computes forward.

    What travelled then, gradients or blocks, has an entry each. Workers that do not learn have no such line. `half` and
    `barrier` are as in the status (core/status.py).
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
    """All transfers that ended from `from_s` to `until_s`, in columns of one length, by start. `queue` is 0 for a push,
    1 for a pull; times are seconds after `from_s`. `left_out` more are not here.

    `arena`: a gradient's id is a place in the arena (core/cut.py).
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
    """Since the last such line the program waited so many seconds for each of these gradients, and `others_s` for all
    others."""

    until_s: float
    waited_s: dict[str, float]
    others_s: float = 0.0
    kind: Literal["waits"] = "waits"


@dataclass(frozen=True)
class PlanRow:
    """A plan was taken up: the `number`th after the first. `predicted_s` is what an iteration is predicted to take
    with blocks of `cut`, `stock_s` in the engine's own order; None where nothing was predicted."""

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
    """This cut was found to be in force, the `number`th after the first; `reason` is empty on workers that do not
    decide."""

    time_s: float
    number: int
    segments: tuple[Segment, ...]
    reason: str = ""
    kind: Literal["cut"] = "cut"


@dataclass(frozen=True)
class EndRow:
    """The last line: the status at the end. `dropped` lines were left out for want of room."""

    time_s: float
    iterations: int
    agent: AgentStatus
    watch_cpu_s: float
    dropped: int = 0
    kind: Literal["end"] = "end"


RecordRow = (
    BeginRow | IterationsRow | RatesRow | NetworkRow | ProfileRow | TransfersRow | WaitsRow | PlanRow | CutRow | EndRow
)


class Moments:
    """When transfers are written: often at first, and after each change of the cut, then more and more seldom.

    A moment is some turns in a row, which have two whole iterations or so.
    """

    def __init__(self) -> None:
        self._every_s = 0.0
        self._next_s = -math.inf
        self._until_s = -math.inf
        self._count = 0

    def due(self, now: float, changed: bool, iteration_s: float | None = None) -> bool:
        """Whether this turn's are. `changed`: the cut has, since the last turn; an iteration takes `iteration_s`."""
        if changed:
            self._every_s, self._count, self._next_s = min(self._every_s, 1.0), 0, now
        if now <= self._until_s:
            return True
        if now < self._next_s:
            return False
        self._count += 1
        if self._count == MOMENTS_BEFORE_SELDOMER:
            self._count = 0
            self._every_s = min(max(2 * self._every_s, 1.0), MOST_BETWEEN_MOMENTS_S)
        self._until_s = now + min(max(LEAST_MOMENT_S, ITERATIONS_A_MOMENT * (iteration_s or 0.0)), MOST_MOMENT_S)
        self._next_s = self._until_s + self._every_s
        return True


class Thinning:
    """How many turns one line of rates sums up, so that a day's are some thousand lines."""

    def __init__(self) -> None:
        self._every_s = LEAST_LINE_S
        self._lines = 0
        self._next_s = -math.inf

    def due(self, now: float) -> bool:
        """Asked once a turn: whether a line is to be written now."""
        if now < self._next_s:
            return False
        self._lines += 1
        if self._lines == LINES_BEFORE_SELDOMER:
            self._lines, self._every_s = 0, 2 * self._every_s
        self._next_s = now + self._every_s
        return True
