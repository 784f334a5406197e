"""Questions to a policy that predicts, and its answers.

Rule of this file: values and interfaces; policies/algorithms/chooser.py has the search, and session/tuner.py uses its
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
    """Numbers of machines of a job."""

    workers: int
    servers: int


@dataclass(frozen=True)
class Measured:
    """Seconds of an iteration under a cut, with `credit` bytes in flight."""

    cut: Cut
    credit: int
    iteration_s: float


@dataclass(frozen=True)
class Question:
    """Estimates of a job, and the possible answers.

    `profile` is in forward order, its ids too. With `arena` they are places in the arena, and blocks may lie anywhere
    in it; without, each gradient travels by itself, in partitions of one size. `cuts` are judged in any case, the one
    in force first; with `anew` others may be judged too. `measured` is the job's present iteration. With `barrier` an
    iteration waits for all averages before its next forward pass (learn/barrier.py). `message_s` is the last answer's
    cost of a message beyond the network's, in seconds; None before the first.
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
    """A cut with its best credit, and the predicted iteration.

    `way` is how its blocks are averaged; empty for the engine's usual way. If it `warms_up`, the iterations that pay
    for a change to it are not told.
    """

    cut: Cut
    credit: int
    iteration_s: float
    way: str = ""
    warms_up: bool = False


class ArmName(NamedTuple):
    """Name of an arm: a cut, a way, and True for `barrier` if its iterations wait for all averages."""

    cut: Cut
    way: str
    barrier: bool


class IterationEnd(NamedTuple):
    """End of an iteration: its cut, the way its blocks were averaged, and its seconds.

    With `opens` it is the last of a job's first iterations, in which all blocks travelled for the first time, and tells
    nothing else.
    """

    cut: Cut
    way: str
    took_s: float
    opens: bool = False


class Search(Protocol):
    """Search for the best choices, a little at a time."""

    def work(self, events: int) -> bool:
        """Go on for about this number of the simulation's events. Return True once the search has ended."""
        ...

    @property
    def choices(self) -> Sequence[Choice]:
        """Choices for the cuts judged so far, the best first."""
        ...

    @property
    def message_s(self) -> float | None:
        """Cost of a message beyond the network's, in seconds, for the next question; None if not looked for."""
        ...


@runtime_checkable
class ChoosingPolicy(Policy, Protocol):
    """A policy whose plans follow from predictions, where the shape of the cluster is known."""

    def search(self, question: Question) -> Search:
        """Return the search for the answer."""
        ...

    def chosen_plan(self, choice: Choice, question: Question) -> Plan:
        """Return the plan of a choice of this question's search."""
        ...
