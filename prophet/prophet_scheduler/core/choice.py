"""Questions to a predicting policy, and its answers.

Rule of this file: values and interfaces. policies/algorithms/chooser.py has the search, and session/tuner.py uses its
result. Units are bytes and seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import Profile


@dataclass(frozen=True)
class Shape:
    """Numbers of a job's workers and servers."""

    workers: int
    servers: int


@dataclass(frozen=True)
class Measured:
    """Measured seconds of an iteration under a cut, with up to `credit` bytes in flight."""

    cut: Cut
    credit: int
    iteration_s: float


@dataclass(frozen=True)
class Question:
    """Estimates of a job, and the possible answers.

    `profile` and its ids are in forward order. With `arena`, ids are places in the arena, and blocks may lie anywhere
    in it. Without, each gradient travels separately, in partitions of one size. `cuts` are always judged, the current
    one first. With `anew`, the policy may judge others too. `measured` is the job's current iteration time. With
    `barrier`, an iteration waits for all averages before its next forward pass (learn/barrier.py). `message_s` is the
    last answer's cost of a message beyond the network's, in seconds; None before the first answer.
    """

    profile: Profile
    network: Network
    shape: Shape
    cuts: tuple[Cut, ...]
    anew: bool
    arena: bool = True
    jitter_s: float = 0.0
    measured: Measured | None = None
    barrier: bool = False
    message_s: float | None = None


@dataclass(frozen=True)
class Choice:
    """A cut with its best credit, and the predicted iteration time.

    `way` is how its blocks are averaged; empty for the engine's usual way. If it `warms_up`, the iterations that pay
    for the change to it are not reported.
    """

    cut: Cut
    credit: int
    iteration_s: float
    way: str = ""
    warms_up: bool = False


class ArmName(NamedTuple):
    """Name of an arm: a cut and a way. `barrier` is True if its iterations wait for all averages."""

    cut: Cut
    way: str
    barrier: bool


class IterationEnd(NamedTuple):
    """End of an iteration: its cut, the way its blocks were averaged, and its seconds.

    With `opens`, it is the last of the job's first iterations, in which all blocks travelled for the first time. Its
    time then means nothing.
    """

    cut: Cut
    way: str
    took_s: float
    opens: bool = False


class Search(Protocol):
    """Incremental search for the best choices."""

    def work(self, events: int) -> bool:
        """Continue for about `events` events of the simulation. Return True once the search is complete."""
        ...

    @property
    def choices(self) -> Sequence[Choice]:
        """Choices for the cuts judged so far, best first."""
        ...

    @property
    def message_s(self) -> float | None:
        """Cost of a message beyond the network's, in seconds, for the next question; None if not estimated."""
        ...


@runtime_checkable
class ChoosingPolicy(Policy, Protocol):
    """A policy that derives its plans from predictions, once the shape of the cluster is known."""

    def search(self, question: Question) -> Search:
        """Return a search for the answer."""
        ...

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        """Return the plan for a choice found by this question's search."""
        ...
