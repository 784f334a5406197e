"""Status of Prophet in a worker: the file that PROPHET_STATUS_OUT asks for.

Rule of this file: immutable values that a training process can make, and nothing else; lab/records.py reads and checks
the file. Later fields have a default, so that older files can be read. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prophet_scheduler.core.cut import Segment
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline
from prophet_scheduler.core.units import format_size


@dataclass(frozen=True)
class LaneStatus:
    """State of the pushes or the pulls: how many wait to be sent and how many are in flight (not acknowledged, not
    answered).

    `oldest_gradient` (an id as in events) has been in flight for longest, for `oldest_s` seconds; both are None if
    nothing is in flight.
    """

    waiting: int = 0
    in_flight: int = 0
    oldest_s: float | None = None
    oldest_gradient: int | None = None


@dataclass(frozen=True)
class HookStatus:
    """Counters of the hook. `why_aside` is empty unless it stepped aside by itself.

    `watchdog_releases` counts transfers that were held for PROPHET_WATCHDOG_S without any progress and then released.
    `unanswered_releases` of them were held because of transfers in flight, none of which had ended for so long; the
    others were held for predicted ones that did not come.

    `still_s` is the time since a task last came, left or was answered; None before the first.
    """

    active: bool
    why_aside: str
    tasks: int
    pending: int
    in_flight_bytes: int
    watchdog_releases: int
    events_dropped: int
    still_s: float | None = None
    pushes: LaneStatus = LaneStatus()
    pulls: LaneStatus = LaneStatus()
    unanswered_releases: int = 0


def describe_cut(cut: Sequence[Segment]) -> str:
    """Return the sizes of blocks, in a few words."""
    if not cut:
        return ""
    sizes = sorted({segment.block_bytes for segment in cut})
    if len(sizes) == 1:
        return f"of {format_size(sizes[0])}"
    return f"of {format_size(sizes[0])} to {format_size(sizes[-1])}, {len(cut)} stretches"


@dataclass(frozen=True)
class ArmStatus:
    """One arm of the job: blocks of `cut`, averaged in this `way` (empty for the usual one).

    An iteration was predicted to take `predicted_s`. After `seen` iterations under this arm and those under others, it
    is believed to take `believed_s`, with the standard error `error`, as a share.
    """

    cut: tuple[Segment, ...]
    way: str
    predicted_s: float
    believed_s: float
    error: float
    seen: int

    @property
    def words(self) -> str:
        """Return the arm in a few words."""
        return f"{self.way} {describe_cut(self.cut)}".strip()


@dataclass(frozen=True)
class ObservedTimes:
    """Times of a job's iterations without Prophet: medians of `looks` iterations.

    An iteration takes `iteration_s`, of which backward computes for `backward_s`. Then all ranks wait `network_s` for
    averages, and this rank waits `others_s` more for slower ranks. `error_s` is the standard error of `network_s`.
    """

    iteration_s: float
    backward_s: float
    network_s: float
    others_s: float
    error_s: float
    looks: int

    @property
    def share(self) -> float:
        """Share of an iteration that waits for the network."""
        return self.network_s / self.iteration_s

    @property
    def share_error(self) -> float:
        """Standard error of that share."""
        return self.error_s / self.iteration_s


@dataclass(frozen=True)
class Observed:
    """One job under PROPHET_SCHEDULER=observe. `times` is None after too few iterations.

    Gradients are in forward order: sizes in bytes, and the times of their generation after backward began.
    `low_rank_bytes` has the bytes that PowerSGD of rank 1 sends for each. `bucket_bytes` fills one of
    DistributedDataParallel's buckets, None for its default.
    """

    ranks: int
    iterations: int
    times: ObservedTimes | None
    gradient_bytes: tuple[int, ...] = ()
    generation_s: tuple[float, ...] = ()
    low_rank_bytes: tuple[int, ...] = ()
    bucket_bytes: int | None = None
    half: bool = False
    """True if gradients travel in half precision."""
    own_hook: str = ""
    """Communication hook of the job that changes what is sent in an unknown way."""
    modules: int = 1
    """Modules of the process; only the first is watched."""
    no_prophet: str = ""
    """Reason why Prophet would leave the job as it is."""
    shards: int = 0
    """Ranks that share a module's parameters with FSDP2; 0 with DistributedDataParallel. Then a gradient is a module's.
    """
    keep: bool = False
    """True if FSDP2 keeps parameters after forward."""
    on_host: int = 1
    """Ranks that share a host and its link."""
    message_s: float | None = None
    """Time of a message between ranks beside its bytes; None if it was not seen."""


@dataclass(frozen=True)
class AgentStatus:
    """One worker at its end. `stepped_aside` is empty, or the reason why the engine went on in its own order.

    `plans` is the number of plans after the first, `agent_cpu_s` the processor time of Prophet's thread. Sizes and
    credits are bytes; a credit of None is no limit. `network` is None if nothing was measured, `hook` if there was
    none. `partition_bytes` is the size with which BytePS started; without BytePS it is the size of all blocks, or their
    maximum.

    With `arena`, ids of events are places in the arena (core/cut.py); otherwise they count gradients. `cut` has the
    segments of the first optimizer's cut at the end, none if none had been agreed on. It changed `recuts` times, last
    at `last_recut_s` on the clock of the events, for `recut_reason`, when an iteration was predicted to take
    `recut_predicted_s`. Workers that do not decide have no reason and no prediction.
    """

    policy: str
    stepped_aside: str
    plans: int
    agent_cpu_s: float
    partition_bytes: int
    push_credit: int | None
    pull_credit: int | None = None
    deadlines: tuple[Deadline, ...] = ()
    network: Network | None = None
    hook: HookStatus | None = None
    cut: tuple[Segment, ...] = ()
    recuts: int = 0
    last_recut_s: float | None = None
    recut_reason: str = ""
    recut_predicted_s: float | None = None
    arena: bool = False
    began_warm: bool = False
    """True if the first plans were made from results kept of an earlier run, or from a given profile."""
    refused: tuple[str, ...] = ()
    """Sizes of blocks that were impossible, each with the reason."""
    kept_was_dropped: str = ""
    """Reason for dropping those results; empty if they were not dropped."""
    given_back: str = ""
    """Advantage of the engine's own way, if it was faster and had the rest of the job."""
    barrier: bool = False
    """True if iterations were seen to wait for all averages at the end."""
    arms: tuple[ArmStatus, ...] = ()
    """Arms of the job, the fastest first; empty on workers that do not decide."""
    tuner: str = ""
    """Present action of the tuner, and its reason."""
    half: bool = False
    """True if gradients travel in half precision, so that sizes are half of the gradients' own."""
    observed: Observed | None = None
    """Observations on the first rank under PROPHET_SCHEDULER=observe."""
