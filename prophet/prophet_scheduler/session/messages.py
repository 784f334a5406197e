"""Messages between a session and its host: events go in, instructions come out.

Rule of this file: immutable values alone. Times are seconds, sizes bytes.
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
    """Cost of a change of blocks on an engine, beside that of any change, and the maximum number of cuts of a job."""

    new_sends: int
    """Number of times that a new block travels before its first round."""
    lasts: int
    """Iterations over which a change is paid."""
    most_cuts: int


NEW_KEYS = Changes(new_sends=2, lasts=2, most_cuts=8)
"""Parameter servers: a new block has two new keys, and a worker sends a key's bytes once to make room for them."""
NOTHING_NEW = Changes(new_sends=0, lasts=1, most_cuts=24)
"""Collectives: the ranks agree, and that is all."""


@dataclass(frozen=True)
class Basis:
    """Estimates that predictions are made from. `jitter_s`: see JobProfiler. `barrier`: iterations wait for all."""

    profile: Profile
    network: Network
    jitter_s: float = 0.0
    barrier: bool = False


WaysOf = Callable[[Question, Sequence[str]], Sequence[Choice]]
"""Predictions of an engine's own ways of averaging, by their names, beside those of a policy."""


@dataclass(frozen=True)
class SessionTerms:
    """Terms of a job that its session begins with.

    `monitor_s`: seconds from one plan to the next. `forward_ids`: see JobProfiler. `arena`: ids are places in the
    arena, in UNIT_BYTES (core/cut.py); otherwise they count gradients. `shape`: of the cluster; None if unknown, and
    then nothing is predicted. `adapts`: plans may ask for another cut; only for the deciding worker of a job whose
    blocks adapt. `follows`: another worker chooses the cut and the credit, and this one only measures. `learns_order`:
    blocks are ranked anew if their places are not in forward order (learn/ranks.py); each worker may do so alone.
    `changes`: cost of another cut.
    """

    monitor_s: float
    forward_ids: bool = False
    arena: bool = True
    shape: Shape | None = None
    adapts: bool = False
    follows: bool = False
    learns_order: bool = False
    changes: Changes = NEW_KEYS


# Events.


@dataclass(frozen=True)
class Turn:
    """Everything since the last turn at `now`. It is one event, since its parts are in no order.

    `events` (EVENT_DTYPE) and `nic` are measurements. `cut` is the cut in force, None before the first, and `way` the
    present way of averaging blocks. `divided`: blocks have two phases, and so other ids. `ended` are iterations; if
    None, they come from the events. `forward_ends`: ends of forward passes, if the engine sees them. `barrier`:
    iterations seem to wait for all averages. `refusals` are all cuts that the engine cannot give the job now. `ways`
    are the engine's own ways of averaging that are possible now.

    From other workers: `networks` are the measurements of all; plans use the one that every iteration waits for.
    `credit` (bytes) is the wish of the deciding worker; None before its first. `pace` is the slowest worker's time to
    compute over this worker's.
    """

    now: float
    events: NDArray[Any]
    nic: NicSample | None = None
    cut: Cut | None = None
    way: str = ""
    divided: bool = False
    ended: Sequence[IterationEnd] | None = None
    forward_ends: Sequence[float] = ()
    barrier: bool = False
    refusals: Sequence[Refusal] = ()
    ways: Sequence[str] = ()
    networks: Sequence[Network] = ()
    credit: int | None = None
    pace: float = 1.0


@dataclass(frozen=True)
class Remembered:
    """Results kept of the job's last run. Plans are made from them until the job has measured its own."""

    kept: Kept


@dataclass(frozen=True)
class ForwardTraced:
    """Traced times of forward (seconds, by id) for the next plan, and the policy that makes it.

    The policy replaces the same one with less knowledge. Without times, the former ones hold no more.
    """

    forward_s: Mapping[int, float]
    policy: Policy


Event = Turn | Remembered | ForwardTraced


# Instructions.


@dataclass(frozen=True)
class TakeUp:
    """Follow this plan from now on, on this worker."""

    plan: Plan


@dataclass(frozen=True)
class Want:
    """Ask all workers for this from some later round on: other blocks, another credit (bytes) or another way.

    `cut` None keeps the cut in force. `why` and `predicted_s` are the reason and the predicted seconds of an iteration.
    `iterations` is the minimum to spend on it; 0 if it is to stay.
    """

    cut: Cut | None
    credit: int | None
    way: str = ""
    why: str = ""
    predicted_s: float | None = None
    iterations: int = 0


Instruction = TakeUp | Want
