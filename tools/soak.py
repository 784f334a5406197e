"""A soak: starts, tasks, long training and faults, again and again; the page docs/reliability.md.

Rule of this file: what is still to be run, in which pieces, and where it is kept. A piece that is there already is not
run again, so it can be interrupted and goes on later; each part keeps its figures as soon as it has run. `make soak`
runs all of it, `python -m tools.soak PART...` only some, and `--short` as little as shows that every part works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools import kept, soak_jobs
from tools.command_line import exit_status, page_parser
from tools.native_stress import CHECKS, PLAIN, StressRun, build_stress, run_tasks, why_not
from tools.pieces import add_piece, read_pieces
from tools.provenance import here
from tools.soak_page import NAME, PAGE, faults_of, kept_data, page
from tools.soak_records import ENGINES, PROPHETS, FaultRun, LongTraining, SoakData, SoakStart, starts_of, tasks_of

ROOT = Path(__file__).parents[1]
PARTS = ("starts", "tasks", "training", "faults")
BATCH_S = 45.0
"""Seconds of starts that one program makes before it ends, and the bar moves on."""
RUN_TASKS = 500_000
"""Tasks of one run of the stress program: it steps aside once in each run."""
CHECKED_RUN_TASKS = 50_000
"""Tasks of a run with a check, which takes about ten times as long."""
PIECE_S = 900.0
"""Seconds of one job of long training."""
EVERY_S = 10.0
"""Mean seconds that a rate stays in long training."""


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
    """The pieces of a soak in a folder, and time for more of them until `seconds` have passed."""

    def __init__(self, out: Path, amounts: Amounts, seconds: float, progress: Progress) -> None:
        self._out = out
        self._amounts = amounts
        self._ends_at = time.monotonic() + seconds
        self._progress = progress

    def run(self, part: str, data: SoakData) -> SoakData:
        """Return `data` with the figures of the part, after the missing pieces. Raises UserError."""
        parts: dict[str, Callable[[SoakData], SoakData]] = {
            "starts": self._starts,
            "tasks": self._tasks,
            "training": self._training,
            "faults": self._faults,
        }
        done = parts[part](data)
        if done == data:
            return data
        load = {**done.load, part: round(os.getloadavg()[0], 1)}
        return replace(done, measured={**done.measured, part: here()}, load=load)

    def time_left(self) -> bool:
        """True if another piece may begin."""
        return time.monotonic() < self._ends_at

    def _bar(self, words: str, total: int, done: int) -> Callable[[int], None]:
        """Draw a progress bar. The returned function is called with the number done."""
        task = self._progress.add_task(words, total=total, completed=min(done, total))

        def update(count: int) -> None:
            self._progress.update(task, completed=min(count, total))
            self._progress.refresh()

        return update

    def _starts(self, data: SoakData) -> SoakData:
        file, wanted = self._out / "starts.jsonl", self._amounts.starts
        counts = {engine: self._count_starts(file, engine) for engine in ENGINES}
        updates = {engine: self._bar(f"starts: {engine}", wanted, counts[engine][0]) for engine in ENGINES}
        # The engines take turns, so that a soak that is cut short has as much time for each.
        while (missing := [e for e in ENGINES if counts[e][0] < wanted]) and self.time_left():
            for engine in missing:
                before, counts[engine] = counts[engine], self._batch(file, engine)
                updates[engine](counts[engine][0])
                if counts[engine] == before:
                    raise UserError(f"no start of {engine} came to an end; see {file.parent}/starts")
        return replace(data, starts=starts_of(read_pieces(file, SoakStart)))

    def _batch(self, file: Path, engine: str) -> tuple[int, int]:
        """Make some more starts. Returns the new `_count_starts`. Raises UserError."""
        command = [sys.executable, "-m", "tools.soak_starts", engine, "--file", str(file.resolve())]
        command += ["--starts", str(self._amounts.starts), "--seconds", str(BATCH_S)]
        ended = subprocess.run(command, cwd=ROOT, env=without_jobs(os.environ), capture_output=True, text=True)
        if ended.returncode != 0:
            said = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise UserError(f"starts of {engine} cannot be made: {said}")
        return self._count_starts(file, engine)

    @staticmethod
    def _count_starts(file: Path, engine: str) -> tuple[int, int]:
        """Return (starts under Prophet, all starts) of the engine."""
        mine = [start for start in read_pieces(file, SoakStart) if start.engine == engine]
        return sum(start.prophet for start in mine), len(mine)

    def _tasks(self, data: SoakData) -> SoakData:
        file = self._out / "tasks.jsonl"
        for check in (PLAIN, *self._amounts.checks):
            if check != PLAIN and (why := why_not(check)):
                self._progress.console.print(f"tasks under the check of {check}: not run, {why}")
                continue
            total = self._amounts.tasks if check == PLAIN else self._amounts.checked_tasks
            each = RUN_TASKS if check == PLAIN else CHECKED_RUN_TASKS
            self._tasks_under(check, total, min(each, total), file)
        return replace(data, tasks=tasks_of(read_pieces(file, StressRun)))

    def _tasks_under(self, check: str, total: int, each: int, file: Path) -> None:
        runs = [run for run in read_pieces(file, StressRun) if run.check == check]
        done = sum(run.tasks for run in runs)
        update = self._bar(f"tasks: {check}", total, done)
        if done >= total or not self.time_left():
            return
        folder = self._out / f"stress-{check}"
        folder.mkdir(parents=True, exist_ok=True)
        built = build_stress(folder, CHECKS.get(check, ()))
        seed = len(runs)
        while done < total and self.time_left():
            seed += 1
            run = run_tasks(built, check, min(each, max(total - done, 1)), seed, limit_s=120.0)
            add_piece(file, run)
            done += run.tasks
            update(done)
            if run.wrong:
                self._progress.console.print(f"tasks under {check}: {run.wrong}", style="red", markup=False)
                return

    def _training(self, data: SoakData) -> SoakData:
        file = self._out / "training.jsonl"
        each_s = min(PIECE_S, self._amounts.training_s)
        pieces = max(1, round(self._amounts.training_s / each_s))
        wanted = [policy for _ in range(pieces) for policy in self._amounts.training_policies]
        done = read_pieces(file, LongTraining)
        update = self._bar("training", len(wanted), len(done))
        for number, policy in enumerate(wanted):
            if [job.policy for job in done].count(policy) > wanted[:number].count(policy) or not self.time_left():
                continue
            experiment = soak_jobs.long_training(policy, each_s, number, EVERY_S)
            job = soak_jobs.train_long(experiment, self._out / "training" / f"{policy}-{number}")
            add_piece(file, job)
            done.append(job)
            update(len(done))
        return replace(data, training=done)

    def _faults(self, data: SoakData) -> SoakData:
        file = self._out / "faults.jsonl"
        jobs = [soak_jobs.short_fault_job()] if self._amounts.only_short_faults else soak_jobs.fault_jobs()
        wanted = [job for _ in range(self._amounts.rounds) for job in jobs]
        done = read_pieces(file, FaultRun)
        update = self._bar("faults", len(wanted), len(done))
        for number, (experiment, fault, policy) in enumerate(wanted):
            earlier = sum(job[1:] == (fault, policy) for job in wanted[:number])
            made = sum((run.fault, run.policy) == (fault, policy) for run in done)
            if made > earlier or not self.time_left():
                continue
            run = soak_jobs.fault_run(experiment, fault, self._out / "faults" / f"{number}-{policy}")
            add_piece(file, run)
            done.append(run)
            update(len(done))
        return replace(data, faults=done)


def run(parts: Sequence[str], out: Path, results: Path, amounts: Amounts, seconds: float) -> int:
    """Run what is missing of the parts, keep their figures and write the page. Returns 1 if something was wrong under
    Prophet. Raises UserError.
    """
    if {"training", "faults"} & set(parts):
        reexec_in_user_namespace()
    console = Console()
    data = kept_data(results)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn by the soak's own calls: a thread that draws would take time from what is measured.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        soak = Soak(out, amounts, seconds, progress)
        for part in parts:
            data = soak.run(part, data)
            kept.keep(results, NAME, SoakData, data, here())
            (results / PAGE).write_text(page(results), encoding="utf-8")
    if not soak.time_left():
        console.print("time was over before all was run: call it again to go on")
    for line in (wrong := faults_of(data)):
        console.print(line, style="red", markup=False, soft_wrap=True)
    console.print(f"the page is {(results / PAGE).resolve()}", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """Run and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("soak", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all where left out")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for the pieces")
    parser.add_argument("--short", action="store_true", help="as little as shows that every part works")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no piece begins after so many seconds")
    parser.add_argument("--starts", type=int, help="under Prophet on each engine")
    parser.add_argument("--tasks", type=int, help="through the hook, plain")
    parser.add_argument("--checked-tasks", type=int, help="under each of the compiler's checks")
    parser.add_argument("--training-seconds", type=float, help="under each policy")
    parser.add_argument("--rounds", type=int, help="how often each fault")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"{unknown[0]!r} is no part of the soak; they are {', '.join(PARTS)}")
    given = {
        "starts": options.starts,
        "tasks": options.tasks,
        "checked_tasks": options.checked_tasks,
        "training_s": options.training_seconds,
        "rounds": options.rounds,
    }
    amounts = replace(SHORT if options.short else Amounts(), **{k: v for k, v in given.items() if v is not None})
    return exit_status(lambda: run(options.parts or PARTS, options.out, options.results, amounts, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
