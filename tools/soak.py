"""A soak: starts, tasks, long training and faults, again and again.

Rule of this file: what is still to be run, in which pieces, and where it is kept. A piece that is there already is not
run again, so it can be interrupted and goes on later; each part keeps its figures as soon as it has run. `make soak`
runs all of it, `python -m tools.soak PART...` only some, and `--short` as little as shows that every part works.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools import kept, soak_jobs
from tools.command_line import exit_status, page_parser
from tools.kept import add_piece, read_pieces
from tools.native_stress import CHECKS, PLAIN, StressRun, build_stress, run_tasks, why_not
from tools.provenance import here
from tools.soak_records import ENGINES, PROPHETS, FaultRun, LongTraining, SoakData, SoakStart, starts_of, tasks_of

NAME = "soak"
ROOT = Path(__file__).parents[1]
PARTS = ("starts", "tasks", "training", "faults")
BATCH_S = 45.0
"""Seconds of starts that one program makes before it ends, and the bar moves on."""
RUN_TASKS = 500_000
"""Tasks of one run of the stress program: it steps aside once in each run. With a check a tenth, which is as slow."""
PIECE_S = 900.0
"""Seconds of one job of long training."""
EVERY_S = 10.0
"""Mean seconds that a rate stays in long training."""
Piece = TypeVar("Piece")


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
        done = replace(data, **{part: getattr(self, f"_{part}")()})
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

    def _starts(self) -> object:
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
        return starts_of(read_pieces(file, SoakStart))

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

    def _tasks(self) -> object:
        file = self._out / "tasks.jsonl"
        for check in (PLAIN, *self._amounts.checks):
            if check != PLAIN and (why := why_not(check)):
                self._progress.console.print(f"tasks under the check of {check}: not run, {why}")
            elif check == PLAIN:
                self._tasks_under(check, self._amounts.tasks, RUN_TASKS, file)
            else:
                self._tasks_under(check, self._amounts.checked_tasks, RUN_TASKS // 10, file)
        return tasks_of(read_pieces(file, StressRun))

    def _tasks_under(self, check: str, total: int, each: int, file: Path) -> None:
        runs = [run for run in read_pieces(file, StressRun) if run.check == check]
        done, seed = sum(run.tasks for run in runs), len(runs)
        update = self._bar(f"tasks: {check}", total, done)
        if done >= total or not self.time_left():
            return
        folder = self._out / f"stress-{check}"
        folder.mkdir(parents=True, exist_ok=True)
        built = build_stress(folder, CHECKS.get(check, ()))
        while done < total and self.time_left():
            seed += 1
            run = run_tasks(built, check, min(each, total, max(total - done, 1)), seed, limit_s=120.0)
            add_piece(file, run)
            done += run.tasks
            update(done)
            if run.wrong:
                self._progress.console.print(f"tasks under {check}: {run.wrong}", style="red", markup=False)
                return

    def _training(self) -> object:
        each_s = min(PIECE_S, self._amounts.training_s)
        wanted = [*self._amounts.training_policies] * max(1, round(self._amounts.training_s / each_s))

        def train(number: int, policy: str) -> LongTraining:
            experiment = soak_jobs.long_training(policy, each_s, number, EVERY_S)
            return soak_jobs.train_long(experiment, self._out / "training" / f"{policy}-{number}")

        works = [(policy, lambda n=number, p=policy: train(n, p)) for number, policy in enumerate(wanted)]
        return self._jobs("training", LongTraining, works, lambda job: job.policy)

    def _faults(self) -> object:
        jobs = [soak_jobs.short_fault_job()] if self._amounts.only_short_faults else soak_jobs.fault_jobs()
        works = [
            (
                (fault, policy),
                lambda e=experiment, f=fault, folder=f"{number}-{policy}": soak_jobs.fault_run(
                    e, f, self._out / "faults" / folder
                ),
            )
            for number, (experiment, fault, policy) in enumerate(jobs * self._amounts.rounds)
        ]
        return self._jobs("faults", FaultRun, works, lambda run: (run.fault, run.policy))

    def _jobs(
        self,
        part: str,
        kind: type[Piece],
        works: Iterable[tuple[object, Callable[[], Piece]]],
        key_of: Callable[[Piece], object],
    ) -> list[Piece]:
        """Run the jobs that are not there yet, each given with its key; equal keys are as many jobs."""
        file, works = self._out / f"{part}.jsonl", list(works)
        done = read_pieces(file, kind)
        update = self._bar(part, len(works), len(done))
        missing = [key_of(piece) for piece in done]
        for key, work in works:
            if key in missing:
                missing.remove(key)
            elif self.time_left():
                done.append(work())
                add_piece(file, done[-1])
                update(len(done))
        return done


def run(parts: Sequence[str], out: Path, results: Path, amounts: Amounts, seconds: float) -> int:
    """Run what is missing of the parts, and keep their figures. Returns 1 if something was wrong under Prophet.

    Raises UserError.
    """
    if {"training", "faults"} & set(parts):
        reexec_in_user_namespace()
    console = Console()
    stored = kept.kept(results, NAME, SoakData)
    data = SoakData() if stored is None else stored[1]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Drawn by the soak's own calls: a thread that draws would take time from what is measured.
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        soak = Soak(out, amounts, seconds, progress)
        for part in parts:
            data = soak.run(part, data)
            kept.keep(results, NAME, SoakData, data)
    if not soak.time_left():
        console.print("time was over before all was run: call it again to go on")
    for line in (wrong := data.wrong()):
        console.print(line, style="red", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """Run and keep; exit status 2 with one line for an error of the user's."""
    parser = page_parser("soak", __doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all where left out")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder for the pieces")
    parser.add_argument("--short", action="store_true", help="as little as shows that every part works")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no piece begins after so many seconds")
    numbers = [each for each in fields(Amounts) if each.type in ("int", "float")]
    for each in numbers:
        kind = int if each.type == "int" else float
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=kind, help=f"in place of {each.default:,}")
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"{unknown[0]!r} is no part of the soak; they are {', '.join(PARTS)}")
    given = {each.name: value for each in numbers if (value := getattr(options, each.name)) is not None}
    amounts = replace(SHORT if options.short else Amounts(), **given)
    return exit_status(lambda: run(options.parts or PARTS, options.out, options.results, amounts, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
