"""A soak: starts, tasks, long training and faults, again and again.

Rule of this file: what is still to be run, in which pieces, and where it is kept. A piece that is there already is not
run again, so it can be interrupted and goes on later; each part keeps its figures as soon as it has run.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools import kept, soak_jobs
from tools.kept import here, read_pieces, resumed
from tools.native_stress import CHECKS, PLAIN, StressProgram, StressRun, build_stress, run_tasks, why_not
from tools.soak_records import PROPHETS, FaultRun, LongTraining, SoakData, SoakStart, starts_of, tasks_of

NAME = "soak"
ROOT = Path(__file__).parents[1]
RUN_TASKS = 500_000
"""Tasks of one run of the stress program: it steps aside once in each run. With a check a tenth, which is as slow."""
PIECE_S = 900.0
"""Seconds of one job of long training."""


@dataclass(frozen=True)
class Amounts:
    """Amounts to run: `starts` under Prophet on each engine, `tasks` plain and under each check, seconds of training
    under each of its policies, and how often each fault.
    """

    starts: int = 500
    tasks: int = 10_000_000
    checked_tasks: int = 1_000_000
    training_s: float = 3600.0
    rounds: int = 2
    checks: tuple[str, ...] = tuple(CHECKS)
    training_policies: tuple[str, ...] = PROPHETS
    only_short_faults: bool = False


SHORT = Amounts(2, 100_000, 0, 5.0, 1, (), PROPHETS[:1], True)


@dataclass(frozen=True)
class Soak:
    """The pieces of a soak in the folder `out`; none begins after `ends_at`."""

    out: Path
    amounts: Amounts
    ends_at: float

    def time_left(self) -> bool:
        return time.monotonic() < self.ends_at

    def starts(self) -> Any:
        file, left_s = self.out / "starts.jsonl", self.ends_at - time.monotonic()
        command = [sys.executable, "-m", "tools.soak_starts", "--file", str(file.resolve())]
        command += ["--starts", str(self.amounts.starts), "--seconds", str(left_s)]
        ended = subprocess.run(command, cwd=ROOT, env=without_jobs(os.environ), stderr=subprocess.PIPE, text=True)
        if ended.returncode != 0:
            said = ended.stderr.strip().splitlines() or [f"it said nothing; see {file.parent}/starts"]
            raise UserError(f"starts cannot be made: {said[-1]}")
        return starts_of(read_pieces(file, SoakStart))

    def tasks(self) -> Any:
        totals = {PLAIN: self.amounts.tasks} | dict.fromkeys(self.amounts.checks, self.amounts.checked_tasks)
        sizes = {check: min(total, RUN_TASKS if check == PLAIN else RUN_TASKS // 10) for check, total in totals.items()}
        for check in self.amounts.checks:
            if why := why_not(check):
                print(f"tasks under the check of {check}: not run, {why}")
                del sizes[check]

        @functools.cache
        def built(check: str) -> StressProgram:
            folder = self.out / f"stress-{check}"
            folder.mkdir(parents=True, exist_ok=True)
            return build_stress(folder, CHECKS.get(check, ()))

        def run(number: int, key: tuple[str, int]) -> StressRun:
            check, seed = key
            return run_tasks(built(check), check, sizes[check], seed, limit_s=120.0)

        wanted = [(check, seed + 1) for check, size in sizes.items() for seed in range(totals[check] // size)]
        file = self.out / "tasks.jsonl"
        return tasks_of(resumed(file, StressRun, wanted, run, lambda run: (run.check, run.seed), self.time_left))

    def training(self) -> Any:
        each_s = min(PIECE_S, self.amounts.training_s)
        wanted = [*self.amounts.training_policies] * max(1, round(self.amounts.training_s / each_s))

        def train(number: int, policy: str) -> LongTraining:
            experiment = soak_jobs.long_training(policy, each_s, number)
            return soak_jobs.train_long(experiment, self.out / "training" / f"{policy}-{number}")

        file = self.out / "training.jsonl"
        return resumed(file, LongTraining, wanted, train, lambda job: job.policy, self.time_left)

    def faults(self) -> Any:
        jobs = [soak_jobs.short_fault_job()] if self.amounts.only_short_faults else soak_jobs.fault_jobs()
        jobs *= self.amounts.rounds

        def run(number: int, key: tuple[str, str]) -> FaultRun:
            experiment, fault, policy = jobs[number]
            return soak_jobs.fault_run(experiment, fault, self.out / "faults" / f"{number}-{policy}")

        wanted, file = [(fault, policy) for _, fault, policy in jobs], self.out / "faults.jsonl"
        return resumed(file, FaultRun, wanted, run, lambda run: (run.fault, run.policy), self.time_left)


PARTS: Mapping[str, Callable[[Soak], Any]] = {
    "starts": Soak.starts,
    "tasks": Soak.tasks,
    "training": Soak.training,
    "faults": Soak.faults,
}
"""Functions that return a part's figures after making its missing pieces. They raise UserError."""


def measure(
    out: Path, results: Path, *, parts: str = ",".join(PARTS), seconds: float = float("inf"), short: int = 0
) -> None:
    """Run what is missing of the parts, and keep their figures after each. No piece begins after `seconds`.

    `short`: as little as shows that every part works. Raises UserError, also if something was wrong under Prophet.
    """
    chosen = parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        raise UserError(f"{unknown[0]!r} is no part of the soak; they are {', '.join(PARTS)}")
    if {"training", "faults"} & set(chosen):
        reexec_in_user_namespace()
    stored = kept.kept(results, NAME, SoakData)
    data = SoakData() if stored is None else stored.data
    soak = Soak(out, SHORT if short else Amounts(), time.monotonic() + seconds)
    for part in chosen:
        done = replace(data, **{part: PARTS[part](soak)})
        if done != data:
            load = round(os.getloadavg()[0], 1)
            data = replace(done, measured={**data.measured, part: here()}, load={**data.load, part: load})
        kept.keep(results, NAME, SoakData, data)
    if not soak.time_left():
        print("time was over before all was run: call it again to go on")
    if wrong := data.wrong():
        print(*wrong, sep="\n")
        raise UserError(f"results that are wrong under Prophet: {len(wrong)}; docs/reliability.md has them")
