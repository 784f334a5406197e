"""Live status of a running worker: one document per request.

Rule of this file: immutable values that a training process can make, and their JSON. sockets.py sends the requests.
Times are seconds, sizes bytes, rates bytes per second. Keys are only added; keys that an older worker lacks have a
default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.status import AgentStatus

if TYPE_CHECKING:
    from prophet_scheduler.core.choice import Choice

STATUS_SCHEMA: Literal[1] = 1


@dataclass(frozen=True)
class WorkerName:
    """Name of one worker of one job. `job` is the script and the port of the workers' rendezvous. `rank` numbers the
    processes of the job, `local_rank` those on this machine. `workers` is None if unknown.
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
    """Spread of the newest `count` iteration times. Statuses of older versions have no `mean_s`."""

    median_s: float
    p10_s: float
    p90_s: float
    last_s: float
    count: int
    mean_s: float = 0.0


@dataclass(frozen=True)
class Flow:
    """Traffic in one direction: `total_bytes` of gradients since the start, and `bytes_per_s` over the last seconds.

    `busy` is the fraction of the last seconds with at least one transfer in flight. A pull counts from its request on,
    which includes waiting for other workers.
    """

    total_bytes: int = 0
    bytes_per_s: float = 0.0
    busy: float = 0.0


@dataclass(frozen=True)
class UrgencyBand:
    """Current transfers of one band of gradients. `first_id` is its first id as in events, `name` the same in words.

    `wait_s` is the mean time from ready to start of the transfers that finished in the last seconds; None if none did.
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
    """Wait of the program for this gradient's average, `for_s` so far. `whom` names the cause, as far as this worker
    can tell.
    """

    gradient: str
    for_s: float
    whom: str


@dataclass(frozen=True)
class Predicted:
    """Predicted, not measured, iteration times: under the last plan with blocks of `cut`, and under the engine's own
    order and barrier. None if there is nothing yet to predict from.
    """

    iteration_s: float | None = None
    stock_iteration_s: float | None = None
    cut: tuple[Segment, ...] = ()


def predicted_of(wanted: Choice | None, stock_iteration_s: float | None) -> Predicted:
    """Return the prediction for the policy's choice, if it made one."""
    if wanted is None:
        return Predicted(stock_iteration_s=stock_iteration_s)
    return Predicted(wanted.iteration_s, stock_iteration_s, wanted.cut.segments)


@dataclass(frozen=True)
class LiveStatus:
    """One worker now. `time_s` is the Unix time of the last turn, `since_s` the time for which Prophet has watched.

    With `all_reduce`, a push has no pull, and both directions carry the same bytes. `iterations` is their number since
    Prophet began to watch. `agent` has the plans and their reasons. `watch_cpu_s` is the processor time of watching.
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
