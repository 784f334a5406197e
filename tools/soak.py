"""A soak test: repeated starts, tasks, long training under changing rates, and the faults of configs/faults.yaml.

Rule of this file: the jobs, the data kept of them, and which results are wrong. Finished pieces are not run again, so
it can be interrupted and continued; each part keeps its figures as soon as it has run. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import EVENTS_OUT
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.cluster_config import Bandwidth
from prophet_scheduler.lab.config import Cell, Experiment, load_experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.faults import FaultKind
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.records import PolicyResult, read_worker
from prophet_scheduler.lab.results import summarize
from prophet_scheduler.lab.runner import run_experiment
from prophet_scheduler.lab.runs import Run
from prophet_scheduler.lab.session import testbed_of
from prophet_scheduler.lab.testbed import Testbed, reexec_in_user_namespace
from tools import kept
from tools.kept import Provenance, here, read_pieces, resumed
from tools.native_stress import CHECKS, PLAIN, StressProgram, StressRun, build_stress, run_tasks, why_not
from tools.starts import Start, checked, soak_jobs

ROOT = Path(__file__).parents[1]
PROPHETS = ("prophet", engines()["ddp"].called_here("prophet"))
"""Names of Prophet's policy on each engine."""
RUN_TASKS = 500_000
"""Tasks in one run of the stress program, in which the hook steps aside once. With a check a tenth, in similar time."""
PIECE_S = 900.0
"""Seconds of one job of long training."""
FAULTS = Path("configs/faults.yaml")
TRAINING = Path("configs/quickstart.yaml")
"""Config of the job for long training, which gets more iterations."""
RATES_BPS = (50e6, 400e6)
"""Range of each worker's changing rate, drawn uniformly in its logarithm."""
ITERATION_S = 0.25
"""Approximate seconds of an iteration at these rates; it determines the number of iterations of a piece."""
EVERY_S = 10.0
"""Mean seconds between changes of rate in long training."""
LEAST_SAMPLES = 10
LEAST_ITERATIONS = 20
ANY_LENGTH = {"warmup": 2, "target_accuracy": 0.01}
"""Settings of a job that is too short for good accuracy; its weights are compared instead."""
ERROR_LETTERS = 230
PARTS = ("starts", "tasks", "training", "faults")
"""Methods of Soak, and fields of SoakData."""
Samples = dict[str, list[tuple[int, int]]]
"""Pairs (iterations done, resident bytes then), by node."""


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

    def growth(self, role: str) -> float | None:
        """Return the growth in bytes per iteration of the role's fastest-growing process; None if unknown."""
        return max((slope for node, slope in self.growth_bytes.items() if node.startswith(role)), default=None)


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


def starts_of(starts: Sequence[Start]) -> list[dict[str, Any]]:
    """Return the data to keep about starts; `first_s` has the times of those that finished an iteration."""

    def group(start: Start) -> tuple[str, bool]:
        return start.job.engine, start.job.prophet

    return [
        {
            "engine": engine,
            "prophet": prophet,
            "two_optimizers": sum(start.job.kind == 1 for start in mine),
            "evaluations": sum(start.job.evaluates for start in mine),
            "first_s": [round(start.first_s, 3) for start in mine if start.first_s > 0],
            "wrong": [start.wrong for start in mine if start.wrong],
        }
        for (engine, prophet), several in groupby(sorted(checked(starts), key=group), key=group)
        for mine in [list(several)]
    ]


def tasks_of(runs: Sequence[StressRun]) -> list[dict[str, Any]]:
    summed = []
    for check in dict.fromkeys(run.check for run in runs):
        mine = [asdict(run) for run in runs if run.check == check]
        counts = {key: sum(run[key] for run in mine) for key in ("tasks", "plans", "suspensions", "asides")}
        seconds, wrong = round(sum(run["seconds"] for run in mine), 1), [run["wrong"] for run in mine if run["wrong"]]
        summed.append({"check": check, "runs": len(mine), **counts, "seconds": seconds, "wrong": wrong})
    return summed


def fault_jobs() -> list[tuple[str, Experiment]]:
    """Return (the faults in words, an experiment of one cell and policy) for each job of FAULTS."""
    experiment = load_experiment(FAULTS)
    return [
        (
            ", ".join(fault.words() for fault in cell.cluster.faults),
            replace(experiment, cells=(replace(cell, policies=(policy,)),), repeats=1),
        )
        for cell in experiment.cells
        for policy in cell.policies
    ]


def short_fault_job() -> tuple[str, Experiment]:
    """Return a short job under Prophet whose server stops for a second, in the form of `fault_jobs`."""
    experiment = load_experiment(FAULTS, ["prophet"], 1)
    cell = next(cell for cell in experiment.cells if any(f.kind is FaultKind.STOPPED for f in cell.cluster.faults))
    (fault,) = cell.cluster.faults
    soon = fault.model_copy(update={"from_s": 0.5, "until_s": 1.5})
    job = cell.job.model_copy(update={"iterations": LEAST_ITERATIONS, **ANY_LENGTH})
    cell = replace(cell, job=job, cluster=cell.cluster.model_copy(update={"faults": [soon]}))
    return soon.words(), replace(experiment, cells=(cell,))


class MemoryWatch:
    """Samples the memory of a job's processes whenever its workers have finished more iterations."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples: Samples = {}
        self._processes: dict[str, psutil.Process] = {}
        self._began_s = 0.0

    def testbed(self, cell: Cell) -> Testbed:
        """Return a testbed that registers the process of each node here."""
        testbed = testbed_of(cell.cluster)
        start = testbed.popen

        def popen(node: str, argv: Sequence[str], *, env: Mapping[str, str], **how: Any) -> Any:
            # Recorded events stay in memory until the job ends, and would look like growth.
            process = start(node, argv, env={k: v for k, v in env.items() if k != EVENTS_OUT}, **how)
            self._processes[node] = psutil.Process(process.pid)
            return process

        testbed.popen = popen  # type: ignore[method-assign]
        return testbed

    def run_starts(self, cell: Cell, policy: Contender, repeat: int) -> None:
        self._began_s = time.monotonic()

    def iterations(self, done: int) -> None:
        for node, process in self._processes.items():
            samples = self.samples.setdefault(node, [])
            if done > (samples[-1][0] if samples else 0):
                with contextlib.suppress(psutil.Error):  # the process has just exited
                    samples.append((done, process.memory_info().rss))

    def run_ends(self, error: str | None) -> None:
        self.seconds = time.monotonic() - self._began_s


def run(experiment: Experiment, out: Path) -> tuple[Run, PolicyResult, MemoryWatch]:
    """Run an experiment of one cell and policy. Raises UserError if a testbed is impossible."""
    watch = MemoryWatch()
    (done,) = run_experiment(experiment, out, watch.testbed, watch)
    ((name, (job,)),) = done.runs.items()
    return job, summarize(experiment, [done]).cells[0].policies[name], watch


def weights_of(found: PolicyResult, folder: Path, workers: int) -> str:
    """Return the digest of a job's final weights, also if it failed after training; "" if not all workers left any."""
    digests = found.weights_sha256
    if not digests:
        files = [folder / f"worker{number}.json" for number in range(workers)]
        left = {read_worker(file).weights_sha256 or "" for file in files if file.exists()}
        digests = sorted(left) if len(left) > 1 else "".join(left) if all(file.exists() for file in files) else ""
    return digests if isinstance(digests, str) else "workers differ"


def changing_bandwidth(seed: int, seconds: float) -> Bandwidth:
    """Return random rates in bits per second for `seconds`, each lasting EVERY_S on average."""
    choices = random.Random(seed)
    low, high = np.log(RATES_BPS)
    points: list[tuple[float, float]] = []
    at_s = 0.0
    while at_s < seconds:
        points.append((at_s, float(np.exp(choices.uniform(low, high)))))
        at_s += EVERY_S * choices.uniform(0.5, 1.5)
    return Bandwidth(points[0][1], changes=tuple(points[1:]))


def train_long(policy: str, seconds: float, seed: int, out: Path) -> LongTraining:
    """Run a job of about `seconds` under `policy`, whose rates change at random, every EVERY_S on average."""
    experiment = load_experiment(TRAINING, [policy], 1)
    (cell,) = experiment.cells
    iterations = max(LEAST_ITERATIONS, round(seconds / ITERATION_S))
    cluster = cell.cluster.model_copy(update={"bandwidth": changing_bandwidth(seed, 4 * seconds)})
    cell = replace(cell, job=cell.job.model_copy(update={"iterations": iterations, **ANY_LENGTH}), cluster=cluster)
    job, found, watch = run(replace(experiment, cells=(cell,)), out)
    trained_s = sum(job.workers[0].iteration_s) if job.workers else watch.seconds
    hooks = [status.hook for status in job.statuses if status.hook is not None]
    return LongTraining(
        policy=policy,
        iterations=iterations,
        seconds=trained_s,
        rates=sum(at_s <= trained_s for at_s, _ in cluster.bandwidth.changes),
        weights=weights_of(found, job.folder, cluster.workers),
        messages=hooks[0].tasks if hooks else None,
        unfinished=sum(hook.pending + hook.pushes.in_flight + hook.pulls.in_flight for hook in hooks),
        recuts=job.statuses[0].recuts if job.statuses else 0,
        growth_bytes=growth(watch.samples),
        resident_bytes={node: samples[-1][1] for node, samples in watch.samples.items() if samples},
        error=found.error or "",
    )


def growth(samples: Samples) -> dict[str, float]:
    """Return the growth in bytes per iteration, by node, over the second half of the samples."""
    slopes = {}
    for node, several in samples.items():
        half = [pair for pair in several if pair[0] >= several[-1][0] / 2]
        if len(half) >= LEAST_SAMPLES:
            iterations, resident = np.array(half, dtype=float).T
            slopes[node] = float(np.polyfit(iterations, resident, 1)[0])
    return slopes


@dataclass(frozen=True)
class Soak:
    """Parts of a soak. Each makes its missing pieces in the folder `out`, and returns its figures. Raises UserError.

    `short` is a smoke test: a few starts and tasks, seconds of training, and one fault.
    """

    out: Path
    short: bool

    def starts(self) -> Any:
        file, count = self.out / "starts.jsonl", 2 if self.short else 500
        if len(read_pieces(file, Start)) < len(soak_jobs(count)):
            command = [sys.executable, "-m", "tools.starts", "soak", str(count), str(file.resolve())]
            ended = subprocess.run(command, cwd=ROOT, env=without_jobs(os.environ), stderr=subprocess.PIPE, text=True)
            if ended.returncode != 0:
                said = ended.stderr.strip().splitlines() or [f"it said nothing; see {file.parent}/starts"]
                raise UserError(f"starts cannot be made: {said[-1]}")
        return starts_of(read_pieces(file, Start))

    def tasks(self) -> Any:
        totals = {PLAIN: 100_000} if self.short else {PLAIN: 10_000_000} | dict.fromkeys(CHECKS, 1_000_000)
        for check in totals.keys() & CHECKS.keys():
            if why := why_not(check):
                print(f"tasks under the check of {check}: not run, {why}")
                del totals[check]
        sizes = {check: min(total, RUN_TASKS if check == PLAIN else RUN_TASKS // 10) for check, total in totals.items()}

        @functools.cache
        def built(check: str) -> StressProgram:
            folder = self.out / f"stress-{check}"
            folder.mkdir(parents=True, exist_ok=True)
            return build_stress(folder, CHECKS.get(check, ()))

        def run(number: int, key: tuple[str, int]) -> StressRun:
            check, seed = key
            return run_tasks(built(check), check, sizes[check], seed, limit_s=120.0)

        wanted = [(check, seed + 1) for check, size in sizes.items() for seed in range(totals[check] // size)]
        return tasks_of(resumed(self.out / "tasks.jsonl", StressRun, wanted, run, lambda run: (run.check, run.seed)))

    def training(self) -> Any:
        wanted = list(PROPHETS[:1]) if self.short else list(PROPHETS) * 4

        def train(number: int, policy: str) -> LongTraining:
            seconds = 5.0 if self.short else PIECE_S
            return train_long(policy, seconds, number, self.out / "training" / f"{policy}-{number}")

        return resumed(self.out / "training.jsonl", LongTraining, wanted, train, lambda job: job.policy)

    def faults(self) -> Any:
        jobs = [short_fault_job()] if self.short else fault_jobs() * 2

        def make(number: int, key: tuple[str, str]) -> FaultRun:
            experiment, (_, policy) = jobs[number][1], key
            job, found, watch = run(experiment, self.out / "faults" / f"{number}-{policy}")
            weights = weights_of(found, job.folder, experiment.cells[0].cluster.workers)
            longest_s = max((time_s for worker in job.workers for time_s in worker.iteration_s), default=None)
            return FaultRun(*key, weights, found.error or "", found.ended_after_s, longest_s, watch.seconds)

        wanted = [(fault, experiment.cells[0].policies[0].name) for fault, experiment in jobs]
        return resumed(self.out / "faults.jsonl", FaultRun, wanted, make, lambda run: (run.fault, run.policy))


def measure(out: Path, results: Path, *, parts: str = ",".join(PARTS), short: int = 0) -> None:
    """Run the missing pieces of the parts, and keep each part's figures. `short`: a smoke test of every part.

    Raises UserError, also if something was wrong under Prophet.
    """
    chosen = parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        raise UserError(f"{unknown[0]!r} is no part of the soak; its parts are {', '.join(PARTS)}")
    if {"training", "faults"} & set(chosen):
        reexec_in_user_namespace()
    stored = kept.kept(results, "soak", SoakData)
    data = SoakData() if stored is None else stored.data
    soak = Soak(out, bool(short))
    for part in chosen:
        done = replace(data, **{part: getattr(soak, part)()})
        if done != data:
            load = round(os.getloadavg()[0], 1)
            data = replace(done, measured={**data.measured, part: here()}, load={**data.load, part: load})
        kept.keep(results, "soak", SoakData, data)
    if wrong := data.wrong():
        print(*wrong, sep="\n")
        raise UserError(f"results that are wrong under Prophet: {len(wrong)}; docs/reliability.md has them")
