"""Status of Prophet in a worker: the content of the PROPHET_STATUS_OUT file.

Rule of this file: only immutable values that a training process can make. lab/records.py reads and checks the file.
Fields added later have a default, so that older files stay readable. Times are seconds.
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
    """State of the pushes or the pulls: the number that waits to be sent, and the number in flight (not acknowledged,
    or not answered).

    `oldest_gradient` (an id as in events) has been in flight longest, for `oldest_s` seconds. Both are None if nothing
    is in flight.
    """

    waiting: int = 0
    in_flight: int = 0
    oldest_s: float | None = None
    oldest_gradient: int | None = None


@dataclass(frozen=True)
class HookStatus:
    """Counters of the hook. `why_aside` is the reason if the hook stepped aside on its own, else empty.

    `watchdog_releases` counts transfers that were held for PROPHET_WATCHDOG_S without any progress and then released.
    `unanswered_releases` of them waited for transfers in flight, none of which finished in that time. The others waited
    for predicted gradients that did not appear.

    `still_s` is the time since a task was last added, started or finished; None before the first.
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
    """Return the block sizes of a cut in a few words."""
    if not cut:
        return ""
    sizes = sorted({segment.block_bytes for segment in cut})
    if len(sizes) == 1:
        return f"of {format_size(sizes[0])}"
    return f"of {format_size(sizes[0])} to {format_size(sizes[-1])}, {len(cut)} stretches"


@dataclass(frozen=True)
class ArmStatus:
    """One arm of the job: blocks of `cut`, averaged in this `way` (empty for the usual one).

    `predicted_s` is the predicted iteration time. `believed_s` is the estimate after `seen` iterations under this arm
    and those under other arms; `error` is its relative standard error.
    """

    cut: tuple[Segment, ...]
    way: str
    predicted_s: float
    believed_s: float
    error: float
    seen: int

    @property
    def words(self) -> str:
        """The arm in a few words."""
        return f"{self.way} {describe_cut(self.cut)}".strip()


@dataclass(frozen=True)
class ObservedTimes:
    """Times of a job's iterations without Prophet: medians over `looks` iterations.

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
        """Fraction of an iteration spent waiting for the network."""
        return self.network_s / self.iteration_s

    @property
    def share_error(self) -> float:
        """Standard error of that fraction."""
        return self.error_s / self.iteration_s


@dataclass(frozen=True)
class Observed:
    """A job under PROPHET_SCHEDULER=observe. `times` is None after too few iterations.

    Gradients are in forward order: sizes in bytes, and generation times after backward began. `low_rank_bytes` has the
    bytes that PowerSGD of rank 1 sends for each. `bucket_bytes` is the bucket size of DistributedDataParallel, None for
    its default.
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
    """The job's own communication hook, if its effect on the data sent is unknown."""
    modules: int = 1
    """Number of modules in the process; only the first is watched."""
    no_prophet: str = ""
    """Reason why Prophet would not take over the job."""
    shards: int = 0
    """Ranks that share a module's parameters with FSDP2, where one gradient is a module's; 0 with
    DistributedDataParallel."""
    keep: bool = False
    """True if FSDP2 keeps parameters after forward."""
    on_host: int = 1
    """Ranks that share a host and its link."""
    one_host: bool = False
    """True if all ranks share a host, so that they use no link."""
    message_s: float | None = None
    """Time of a message between ranks beside its bytes; None if it was not seen."""


@dataclass(frozen=True)
class AgentStatus:
    """One worker when it ended. `stepped_aside` is empty, or the reason why the engine went on in its own order.

    `plans` is the number of plans after the first, `agent_cpu_s` the processor time of Prophet's thread. Sizes and
    credits are bytes; a credit of None means no limit. `network` is None if it was not measured, `hook` if there is no
    hook. `partition_bytes` is the size with which BytePS started; without BytePS, the (maximum) size of blocks.

    With `arena`, event ids are places in the arena (core/cut.py); otherwise they number the gradients. `cut` has the
    segments of the first optimizer's last cut, none if no cut was agreed on. It changed `recuts` times, last at
    `last_recut_s` on the clock of the events, for `recut_reason`, with `recut_predicted_s` as the predicted iteration
    time. Workers that do not decide have no reason and no prediction.
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
    """True after a warm start: the first plans used results of an earlier run, or a given profile."""
    refused: tuple[str, ...] = ()
    """Block sizes that the engine could not apply, each with the reason."""
    kept_was_dropped: str = ""
    """Reason for dropping the results of the earlier run; empty if they were not dropped."""
    given_back: str = ""
    """Advantage of the engine's own way, if it was faster and took the rest of the job."""
    barrier: bool = False
    """True if iterations were seen to wait for all averages before the next forward pass."""
    arms: tuple[ArmStatus, ...] = ()
    """Arms of the job, fastest first; empty on workers that do not decide."""
    tuner: str = ""
    """Current action of the tuner, and its reason."""
    half: bool = False
    """True if gradients travel in half precision, so that sizes are half of the gradients' own."""
    observed: Observed | None = None
    """Observations of the first rank under PROPHET_SCHEDULER=observe, else None."""
