"""Records of a soak: of each start, job and run of tasks, and of all of them together.

Rule of this file: values and their sums. Times are seconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from prophet_scheduler.engines.registry import engines, scheduled_engine
from tools.native_stress import StressRun
from tools.provenance import Provenance

BYTEPS, DDP = scheduled_engine(), engines()["ddp"]
ENGINES = (BYTEPS.name, DDP.name)
"""Names of the engines in records."""
PROPHETS = ("prophet", DDP.called_here("prophet"))
"""The policy on each of them."""


@dataclass(frozen=True)
class SoakStart:
    """One start: `first_s` from the start of its processes to the end of the slower worker's first iteration, `whole_s`
    to the end of all processes. `wrong` is empty, or one line: it hung, failed, or had other weights or losses.
    """

    engine: str
    prophet: bool
    kind: int
    first_s: float
    whole_s: float
    result: str
    """Digest of all workers' losses and weights."""
    wrong: str = ""


@dataclass(frozen=True)
class FaultRun:
    """One job under the faults of a cell: `weights` is a digest of its final model, empty if it did not come to its
    end; `error` is why. `longest_iteration_s` is that of any worker.
    """

    fault: str
    policy: str
    weights: str
    error: str
    ended_after_s: float | None
    longest_iteration_s: float | None
    seconds: float


@dataclass(frozen=True)
class LongTraining:
    """One job of many iterations. `growth_bytes` by role: resident memory an iteration, a line through the second half
    of its samples. `messages` are the pushes and pulls of one worker, None if nobody counts them.
    """

    policy: str
    iterations: int
    seconds: float
    rates: int
    weights: str
    messages: int | None = None
    unfinished: int = 0
    """Transfers that were waiting or under way when the job had ended."""
    watchdog_releases: int = 0
    recuts: int = 0
    growth_bytes: dict[str, float] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    """Resident bytes at the end."""
    error: str = ""


@dataclass(frozen=True)
class StartsOf:
    """All starts of an engine with or without Prophet; `first_s` are their times, to the millisecond."""

    engine: str
    prophet: bool
    two_optimizers: int
    evaluations: int
    first_s: list[float]
    wrong: list[str]


@dataclass(frozen=True)
class TasksOf:
    """All tasks that passed through the hook under a check, in `runs` of the program."""

    check: str
    runs: int
    tasks: int
    plans: int
    suspensions: int
    asides: int
    seconds: float
    wrong: list[str]


@dataclass(frozen=True)
class SoakData:
    """Data kept of the soak: each part's figures, and where it was `measured` last."""

    measured: dict[str, Provenance] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    """Load average of the machine's last minute when each part had run."""
    starts: list[StartsOf] = field(default_factory=list)
    tasks: list[TasksOf] = field(default_factory=list)
    training: list[LongTraining] = field(default_factory=list)
    faults: list[FaultRun] = field(default_factory=list)


def starts_of(starts: Sequence[SoakStart]) -> list[StartsOf]:
    """Return what is kept of starts."""
    groups = dict.fromkeys((start.engine, start.prophet) for start in starts)
    summed = []
    for engine, prophet in sorted(groups):
        mine = [start for start in starts if (start.engine, start.prophet) == (engine, prophet)]
        summed.append(
            StartsOf(
                engine,
                prophet,
                sum(start.kind == 1 for start in mine),
                sum(start.kind == 2 for start in mine),
                [round(start.first_s, 3) for start in mine if start.first_s > 0],
                [start.wrong for start in mine if start.wrong],
            )
        )
    return summed


def tasks_of(runs: Sequence[StressRun]) -> list[TasksOf]:
    """Return what is kept of runs of the stress program."""
    summed = []
    for check in dict.fromkeys(run.check for run in runs):
        mine = [run for run in runs if run.check == check]
        tasks, plans, suspensions, asides = (
            sum(getattr(run, key) for run in mine) for key in ("tasks", "plans", "suspensions", "asides")
        )
        seconds = round(sum(run.seconds for run in mine), 1)
        wrong = [run.wrong for run in mine if run.wrong]
        summed.append(TasksOf(check, len(mine), tasks, plans, suspensions, asides, seconds, wrong))
    return summed
