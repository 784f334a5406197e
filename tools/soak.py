"""A soak: starts, tasks, long training and faults, again and again.

Rule of this file: what is still to be run, in which pieces, and where it is kept. A piece that is there already is not
run again, so it can be interrupted and goes on later; each part keeps its figures as soon as it has run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools import kept, soak_jobs
from tools.kept import add_piece, here, read_pieces, resumed
from tools.native_stress import CHECKS, PLAIN, StressRun, build_stress, run_tasks, why_not
from tools.soak_records import ENGINES, PROPHETS, FaultRun, LongTraining, SoakData, SoakStart, starts_of, tasks_of

NAME = "soak"
ROOT = Path(__file__).parents[1]
PARTS = ("starts", "tasks", "training", "faults")
BATCH_S = 45.0
"""Seconds of starts that one program makes before it ends."""
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


class Soak:
    """The pieces of a soak in a folder, and `seconds` in which more of them may begin."""

    def __init__(self, out: Path, amounts: Amounts, seconds: float) -> None:
        self._out = out
        self._amounts = amounts
        self._ends_at = time.monotonic() + seconds

    def run(self, part: str, data: SoakData) -> SoakData:
        """Return `data` with the figures of the part, after the missing pieces. Raises UserError."""
        done = replace(data, **{part: getattr(self, f"_{part}")()})
        if done == data:
            return data
        load = {**done.load, part: round(os.getloadavg()[0], 1)}
        return replace(done, measured={**done.measured, part: here()}, load=load)

    def time_left(self) -> bool:
        """True if another piece may begin."""
        return time.monotonic() < self._ends_at

    def _starts(self) -> Any:
        file, wanted = self._out / "starts.jsonl", self._amounts.starts

        def made(engine: str) -> list[SoakStart]:
            return [start for start in read_pieces(file, SoakStart) if start.engine == engine]

        def missing() -> list[str]:
            return [engine for engine in ENGINES if sum(start.prophet for start in made(engine)) < wanted]

        # The engines take turns, so that a soak that is cut short has as much time for each.
        while self.time_left() and (engines := missing()):
            for engine in engines:
                before = len(made(engine))
                command = [sys.executable, "-m", "tools.soak_starts", engine, "--file", str(file.resolve())]
                command += ["--starts", str(wanted), "--seconds", str(BATCH_S)]
                ended = subprocess.run(command, cwd=ROOT, env=without_jobs(os.environ), capture_output=True, text=True)
                if ended.returncode != 0 or len(made(engine)) == before:
                    said = (ended.stderr.strip().splitlines() or [f"none came to an end; see {file.parent}/starts"])[-1]
                    raise UserError(f"starts of {engine} cannot be made: {said}")
                print(f"starts of {engine}: {len(made(engine))}", flush=True)
        return starts_of(read_pieces(file, SoakStart))

    def _tasks(self) -> Any:
        file = self._out / "tasks.jsonl"
        for check in (PLAIN, *self._amounts.checks):
            plain = check == PLAIN
            total, each = (self._amounts.tasks, RUN_TASKS) if plain else (self._amounts.checked_tasks, RUN_TASKS // 10)
            if not plain and (why := why_not(check)):
                print(f"tasks under the check of {check}: not run, {why}")
            else:
                self._tasks_under(check, total, min(each, total), file)
        return tasks_of(read_pieces(file, StressRun))

    def _tasks_under(self, check: str, total: int, each: int, file: Path) -> None:
        runs = [run for run in read_pieces(file, StressRun) if run.check == check]
        done, seed, built = sum(run.tasks for run in runs), len(runs), None
        while done < total and self.time_left():
            folder = self._out / f"stress-{check}"
            folder.mkdir(parents=True, exist_ok=True)
            built = built or build_stress(folder, CHECKS.get(check, ()))
            seed += 1
            run = run_tasks(built, check, min(each, max(total - done, 1)), seed, limit_s=120.0)
            add_piece(file, run)
            done += run.tasks
            print(f"tasks under {check}: {done:,} {run.wrong}", flush=True)
            if run.wrong:
                return

    def _training(self) -> Any:
        each_s = min(PIECE_S, self._amounts.training_s)
        wanted = [*self._amounts.training_policies] * max(1, round(self._amounts.training_s / each_s))

        def train(number: int, policy: str) -> LongTraining:
            experiment = soak_jobs.long_training(policy, each_s, number)
            return soak_jobs.train_long(experiment, self._out / "training" / f"{policy}-{number}")

        file = self._out / "training.jsonl"
        return resumed(file, LongTraining, wanted, train, lambda job: job.policy, self.time_left)

    def _faults(self) -> Any:
        jobs = [soak_jobs.short_fault_job()] if self._amounts.only_short_faults else soak_jobs.fault_jobs()
        jobs *= self._amounts.rounds

        def run(number: int, key: tuple[str, str]) -> FaultRun:
            experiment, fault, policy = jobs[number]
            return soak_jobs.fault_run(experiment, fault, self._out / "faults" / f"{number}-{policy}")

        wanted, file = [(fault, policy) for _, fault, policy in jobs], self._out / "faults.jsonl"
        return resumed(file, FaultRun, wanted, run, lambda run: (run.fault, run.policy), self.time_left)


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
    soak = Soak(out, SHORT if short else Amounts(), seconds)
    for part in chosen:
        data = soak.run(part, data)
        kept.keep(results, NAME, SoakData, data)
    if not soak.time_left():
        print("time was over before all was run: call it again to go on")
    if wrong := data.wrong():
        print(*wrong, sep="\n")
        raise UserError(f"results that are wrong under Prophet: {len(wrong)}; docs/reliability.md has them")
