"""What a worker says of itself while it runs: one document for each time that it is asked.

Rule of this file: immutable values that a training process can make, and how they become JSON and come from it; who
asks is sockets.py's. Times are seconds, sizes bytes, rates bytes per second. Keys are only added: what an older worker
does not say has a default.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.status import AgentStatus

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Choice

STATUS_SCHEMA: Literal[1] = 1


@dataclass(frozen=True)
class WorkerName:
    """Which worker of which job. `job` is its script and the port that its workers meet at; `rank` counts the
    processes of the job, `local_rank` those of this machine. `workers` is None where that is not known.
    """

    job: str
    rank: int
    engine: Literal["byteps", "ddp"]
    framework: str = "torch"
    workers: int | None = None
    local_rank: int = 0
    host: str = ""
    pid: int = 0


@dataclass(frozen=True)
class Spread:
    """Of the newest `count` iterations."""

    median_s: float
    p10_s: float
    p90_s: float
    last_s: float
    count: int


@dataclass(frozen=True)
class Flow:
    """One direction. `total_bytes` since the start, of gradients; over the last seconds `bytes_per_s`, and `busy`: the
    share of time in which at least one transfer was in flight. A pull is from when it is asked for, so it may wait for
    other workers meanwhile.
    """

    total_bytes: int = 0
    bytes_per_s: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class UrgencyBand:
    """Transfers of a stretch of the gradients, the first layer's first, as they stand now. `first_id`: where it begins,
    as events have ids; `name` says the same in words. `wait_s`: how long those that ended in the last seconds had been
    ready before they were sent, on average; None where none ended.
    """

    first_id: int
    name: str
    waiting: int = 0
    waiting_bytes: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    wait_s: float | None = None


@dataclass(frozen=True)
class ForwardWait:
    """The program waits for this gradient's average, for `for_s` so far; `whom` says what is still to come, and from
    whom, as far as this worker can see.
    """

    gradient: str
    for_s: float
    whom: str


@dataclass(frozen=True)
class Predicted:
    """No measurement: what an iteration is predicted to take under the last plan, with blocks of `cut`, and under the
    engine's own order and barrier. None where the planner has nothing to predict from.
    """

    iteration_s: float | None = None
    stock_iteration_s: float | None = None
    cut: tuple[Segment, ...] = ()


def predicted_of(wanted: Choice | None, stock_iteration_s: float | None) -> Predicted:
    """Of what a policy chose, if it chooses."""
    if wanted is None:
        return Predicted(stock_iteration_s=stock_iteration_s)
    return Predicted(wanted.iteration_s, stock_iteration_s, wanted.cut.segments)


@dataclass(frozen=True)
class LiveStatus:
    """One worker now. `time_s` is Unix time when blocks and rates were read, `since_s` how long Prophet has watched.

    `all_reduce`: a push is the way back as well, so both directions carry the same. `iterations` counts those since
    then; `agent` says what was planned and why, and `watch_cpu_s` what watching took of the processor.
    """

    worker: WorkerName
    time_s: float
    since_s: float
    iterations: int
    agent: AgentStatus
    iteration: Spread | None = None
    sent: Flow = Flow()
    received: Flow = Flow()
    all_reduce: bool = False
    urgency: tuple[UrgencyBand, ...] = ()
    forward_waits: ForwardWait | None = None
    predicted: Predicted = Predicted()
    last_recut_ago_s: float | None = None
    watch_cpu_s: float = 0.0
    schema: Literal[1] = STATUS_SCHEMA


def as_json(status: LiveStatus) -> dict[str, Any]:
    """The document, of plain values."""
    return dataclasses.asdict(status)
