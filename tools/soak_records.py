"""Records of a soak: of each start, job and run of tasks, and of the whole soak.

Rule of this file: values, their sums, and the definition of wrong results. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prophet_scheduler.engines.registry import engines, scheduled_engine
from tools.kept import Provenance
from tools.native_stress import StressRun

BYTEPS, DDP = scheduled_engine(), engines()["ddp"]
ENGINES = (BYTEPS.name, DDP.name)
"""Names of the engines in records."""
PROPHETS = ("prophet", DDP.called_here("prophet"))
"""Names of Prophet's policy on each of them."""
ERROR_LETTERS = 230
KINDS = (0, 1, 0, 2)
"""Kinds of StressJob, used in turn: plain, two optimizers, plain, an evaluation."""
STOCK_EVERY = 3
"""One in this many starts is without Prophet."""


@dataclass(frozen=True)
class SoakStart:
    """One start: `first_s` is the time from the start of its processes until the slower worker's first iteration ends
    (0 if it does not), `whole_s` until all exit. `wrong` is empty, or one line: it hung or failed.
    """

    engine: str
    prophet: bool
    kind: int
    first_s: float
    whole_s: float
    result: str
    """Digest of all workers' losses and weights; empty if it hung or failed."""
    wrong: str = ""


@dataclass(frozen=True)
class FaultRun:
    """One job under the faults of a cell. `weights` is a digest of its final model, empty if it did not finish; `error`
    is why. `longest_iteration_s` is the longest of all workers.
    """

    fault: str
    policy: str
    weights: str
    error: str
    ended_after_s: float | None
    longest_iteration_s: float | None
    seconds: float

    @property
    def under_prophet(self) -> bool:
        return self.policy in PROPHETS

    @property
    def kills(self) -> bool:
        return "killed" in self.fault

    @property
    def hangs(self) -> bool:
        """True if the harness had to end the job."""
        return "hung: " in self.error

    @property
    def end(self) -> str:
        """`trained`, or when and how the job failed."""
        if not self.error:
            return "trained"
        error = textwrap.shorten(self.error.removeprefix("repeat 1 of 1: ").removeprefix("hung: "), ERROR_LETTERS)
        after = "" if self.ended_after_s is None else f" {self.ended_after_s:.0f} s after the fault began"
        return f"hung: {error}" if self.hangs else f"ended{after}: {error}"


@dataclass(frozen=True)
class LongTraining:
    """One job of many iterations. `growth_bytes`, by node, is the growth of resident memory per iteration: the slope of
    a line through the second half of its samples. `messages` counts one worker's pushes and pulls; None if unknown.
    """

    policy: str
    iterations: int
    seconds: float
    rates: int
    weights: str
    messages: int | None = None
    unfinished: int = 0
    """Transfers that were waiting or in flight when the job had finished."""
    recuts: int = 0
    growth_bytes: dict[str, float] = field(default_factory=dict)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    """Resident bytes at the end."""
    error: str = ""

    def growth(self, role: str, iterations: float = 1.0) -> float | None:
        """Return the growth in bytes over `iterations` of the role's fastest-growing process; None if unknown."""
        slopes = [slope for node, slope in self.growth_bytes.items() if node.startswith(role)]
        return max(slopes) * iterations if slopes else None

    def growth_a_million(self, role: str) -> float | None:
        """Return the same growth per million messages."""
        if not self.messages or not self.resident_bytes:
            return None
        workers = sum(node.startswith("worker") for node in self.resident_bytes) if role == "server" else 1
        return self.growth(role, 1e6 * self.iterations / (self.messages * workers))


@dataclass(frozen=True)
class SoakData:
    """Kept data of the soak: each part's figures, and when and where it was last `measured`."""

    measured: dict[str, Provenance] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    """Load average, by part, of the last minute of its run."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Starts of each engine with and without Prophet, as summed by `starts_of`."""
    tasks: list[dict[str, Any]] = field(default_factory=list)
    """Tasks under each check, as summed by `tasks_of`."""
    training: list[LongTraining] = field(default_factory=list)
    faults: list[FaultRun] = field(default_factory=list)

    @property
    def right_weights(self) -> set[str]:
        """Digests of jobs without a fault: one digest if all is well."""
        return {run.weights for run in self.faults if not run.fault and run.weights}

    def wrong(self) -> list[str]:
        """Return a line for everything that went wrong under Prophet. Hangs of an engine alone do not count."""
        lines = [
            f"start of {each['engine']}: {line}" for each in self.starts if each["prophet"] for line in each["wrong"]
        ]
        lines += [f"tasks, {each['check']}: {line}" for each in self.tasks for line in each["wrong"]]
        lines += [f"training under {job.policy}: {job.error}" for job in self.training if job.error]
        lost = [job for job in self.training if job.unfinished]
        lines += [f"training under {job.policy}: {job.unfinished} tasks lost" for job in lost]
        lengths = {(job.iterations, job.weights) for job in self.training if job.weights}
        if len(lengths) > len({iterations for iterations, _ in lengths}):
            lines.append("training: jobs of one length have different weights")
        right = self.right_weights
        if len(right) > 1:
            lines.append(f"jobs without a fault have {len(right)} different models")
        for run in self.faults:
            other = right and run.weights not in right if run.weights else not run.error
            if run.under_prophet and (run.hangs or other):
                lines.append(f"{run.fault or 'no fault'}, {run.policy}: {'other weights; ' if other else ''}{run.end}")
        return lines


def wanted_starts(count: int) -> list[tuple[str, bool, int]]:
    """Return (engine, True for Prophet, kind) of each start, for `count` starts of each engine under Prophet. The
    engines take turns.
    """
    kinds = {prophet: itertools.cycle(KINDS) for prophet in (False, True)}
    of_engine: list[tuple[bool, int]] = []
    while sum(prophet for prophet, _ in of_engine) < count:
        prophet = len(of_engine) % STOCK_EVERY != 0
        of_engine.append((prophet, next(kinds[prophet])))
    return [(engine, prophet, kind) for prophet, kind in of_engine for engine in ENGINES]


def starts_of(starts: Sequence[SoakStart]) -> list[dict[str, Any]]:
    """Return the data to keep about starts; `first_s` has the times of those that finished an iteration.

    A result is wrong if it differs from that of the same job without Prophet, or, if there is none, from the first one.
    """
    right: dict[tuple[str, int], SoakStart] = {}
    groups: dict[tuple[str, bool], list[SoakStart]] = {}
    for start in sorted(starts, key=lambda start: (start.engine, start.prophet)):
        if not start.wrong:
            reference = right.setdefault((start.engine, start.kind), start)
            if start.result != reference.result:
                of = "Prophet" if reference.prophet else "the engine alone"
                start = replace(start, wrong=f"losses or weights differ from a start of {of}")
        groups.setdefault((start.engine, start.prophet), []).append(start)
    return [
        {
            "engine": engine,
            "prophet": prophet,
            "two_optimizers": sum(start.kind == 1 for start in mine),
            "evaluations": sum(start.kind == 2 for start in mine),
            "first_s": [round(start.first_s, 3) for start in mine if start.first_s > 0],
            "wrong": [start.wrong for start in mine if start.wrong],
        }
        for (engine, prophet), mine in groups.items()
    ]


def tasks_of(runs: Sequence[StressRun]) -> list[dict[str, Any]]:
    summed = []
    for check in dict.fromkeys(run.check for run in runs):
        mine = [run for run in runs if run.check == check]
        counts = {key: sum(getattr(run, key) for run in mine) for key in ("tasks", "plans", "suspensions", "asides")}
        seconds, wrong = round(sum(run.seconds for run in mine), 1), [run.wrong for run in mine if run.wrong]
        summed.append({"check": check, "runs": len(mine), **counts, "seconds": seconds, "wrong": wrong})
    return summed
