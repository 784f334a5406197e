"""Messages between a session and its host: events go in, instructions come out.

Rule of this file: immutable values only. Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prophet_scheduler.core.choice import Choice, IterationEnd, Question, Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from prophet_scheduler.core.cut import Cut, Refusal
    from prophet_scheduler.core.network import Network
    from prophet_scheduler.core.plan import Plan
    from prophet_scheduler.core.policy import Policy
    from prophet_scheduler.core.profile import Profile
    from prophet_scheduler.learn.bandwidth import NicSample
    from prophet_scheduler.session.kept import Kept


@dataclass(frozen=True)
class Changes:
    """Extra cost of a change of blocks on an engine, and the maximum number of cuts of a job."""

    new_sends: int
    """Number of times that a new block is sent before its first round."""
    lasts: int
    """Iterations over which the cost of a change is spread. As many more make a first estimate."""
    most_cuts: int


NEW_KEYS = Changes(new_sends=2, lasts=2, most_cuts=8)
"""Parameter servers: a new block has two new keys, and a worker sends each key's bytes once to allocate them."""
NOTHING_NEW = Changes(new_sends=0, lasts=1, most_cuts=24)
"""Collectives: the ranks only have to agree."""


@dataclass(frozen=True)
class Basis:
    """Inputs of predictions. `jitter_s`: see JobProfiler. `barrier`: iterations wait for all averages."""

    profile: Profile
    network: Network
    jitter_s: float = 0.0
    barrier: bool = False


WaysOf = Callable[[Question, Sequence[str]], Sequence[Choice]]
"""Function that predicts an engine's own ways of averaging, given their names, in addition to a policy's choices."""


@dataclass(frozen=True)
class SessionTerms:
    """Fixed terms of a job, known when its session starts.

    `monitor_s`: seconds between plans. `forward_ids`: see JobProfiler. `arena`: ids are places in the arena, in
    UNIT_BYTES (core/cut.py); otherwise they count gradients. `shape`: of the cluster; if None (unknown), nothing is
    predicted. `adapts`: plans may ask for another cut; True only on the deciding worker of a job with adaptive blocks.
    `follows`: another worker chooses the cut and the credit, and this one only measures. `learns_order`: blocks are
    re-ranked if their places are not in forward order (learn/ranks.py); each worker may do so independently.
    `changes`: cost of another cut. `sees_rounds`: each turn has the `round_ends`.
    """

    monitor_s: float
    forward_ids: bool = False
    arena: bool = True
    shape: Shape | None = None
    adapts: bool = False
    follows: bool = False
    learns_order: bool = False
    changes: Changes = NEW_KEYS
    sees_rounds: bool = False


# Events.


@dataclass(frozen=True)
class Turn:
    """Everything since the last turn, at time `now`. It is a single event because its parts have no order.

    `events` (EVENT_DTYPE) and `nic` are measurements. `cut` is the cut in force (None before the first), and `way` the
    present way of averaging blocks. `divided`: blocks have two phases, and therefore other ids. `ended`: finished
    iterations; None to derive them from the events. `forward_ends`: ends of forward passes, if the engine sees them.
    `round_ends`: times when all gradients of an iteration were generated, if the engine sees them.
    `barrier`: iterations seem to wait for all averages. `refusals`: all cuts that the engine cannot give the job now.
    `ways`: the engine's own ways of averaging that are possible now.

    From other workers: `networks` has every worker's measurement; plans use the one that every iteration waits for.
    `credit` (bytes) is the request of the deciding worker; None before its first. `pace` is the slowest worker's
    compute time divided by this worker's.
    """

    now: float
    events: NDArray[Any]
    nic: NicSample | None = None
    cut: Cut | None = None
    way: str = ""
    divided: bool = False
    ended: Sequence[IterationEnd] | None = None
    forward_ends: Sequence[float] = ()
    round_ends: Sequence[float] = ()
    barrier: bool = False
    refusals: Sequence[Refusal] = ()
    ways: Sequence[str] = ()
    networks: Sequence[Network] = ()
    credit: int | None = None
    pace: float = 1.0


@dataclass(frozen=True)
class Remembered:
    """Results kept from the job's last run. Plans use them until the job has measured its own."""

    kept: Kept


@dataclass(frozen=True)
class ForwardTraced:
    """Traced forward times (seconds, by id) for the next plan, and the policy to make it with.

    The policy replaces an instance of itself that knew less. An empty mapping invalidates earlier times.
    """

    forward_s: Mapping[int, float]
    policy: Policy


Event = Turn | Remembered | ForwardTraced


# Instructions.


@dataclass(frozen=True)
class TakeUp:
    """Use this plan on this worker from now on."""

    plan: Plan


@dataclass(frozen=True)
class Want:
    """Ask all workers to change blocks, credit (bytes) or way from some later round on.

    `cut`: None keeps the cut in force. `why`: the reason. `predicted_s`: predicted seconds per iteration. `iterations`:
    the minimum to spend on the change; 0 if it is permanent.
    """

    cut: Cut | None
    credit: int | None
    way: str = ""
    why: str = ""
    predicted_s: float | None = None
    iterations: int = 0


Instruction = TakeUp | Want
