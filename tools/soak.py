"""A soak test: repeated starts, tasks, long training under changing rates, and the faults of configs/faults.yaml.

Rule of this file: the pieces still to run, how to run each job on the testbed, and the data to keep. Finished pieces
are not run again, so it can be interrupted and continued; each part keeps its figures as soon as it has run. Times are
seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import EVENTS_OUT
from prophet_scheduler.lab.cluster_config import Bandwidth
from prophet_scheduler.lab.config import Cell, Experiment, load_experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.faults import FaultKind
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.records import PolicyResult, read_worker
from prophet_scheduler.lab.results import summarize
from prophet_scheduler.lab.runner import run_experiment
from prophet_scheduler.lab.runs import Run
from prophet_scheduler.lab.testbed import NodeSpec, Testbed, reexec_in_user_namespace
from tools import kept
from tools.kept import here, read_pieces, resumed
from tools.native_stress import CHECKS, PLAIN, StressProgram, StressRun, build_stress, run_tasks, why_not
from tools.soak_records import PROPHETS, FaultRun, LongTraining, SoakData, SoakStart, starts_of, tasks_of, wanted_starts

NAME = "soak"
ROOT = Path(__file__).parents[1]
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
PARTS = ("starts", "tasks", "training", "faults")
"""Methods of Soak, and fields of SoakData."""
Samples = dict[str, list[tuple[int, int]]]
"""Pairs (iterations done, resident bytes then), by node."""


def short_fault_job() -> tuple[Experiment, str, str]:
    """Return a short job under Prophet whose server stops for a second, in the form of `fault_jobs`."""
    experiment = load_experiment(FAULTS, ["prophet"], 1)
    cell = next(cell for cell in experiment.cells if any(f.kind is FaultKind.STOPPED for f in cell.cluster.faults))
    (fault,) = cell.cluster.faults
    soon = fault.model_copy(update={"from_s": 0.5, "until_s": 1.5})
    job = cell.job.model_copy(update={"iterations": LEAST_ITERATIONS, **ANY_LENGTH})
    cell = replace(cell, job=job, cluster=cell.cluster.model_copy(update={"faults": [soon]}))
    return replace(experiment, cells=(cell,)), soon.words(), "prophet"


def fault_jobs() -> list[tuple[Experiment, str, str]]:
    """Return (an experiment of one cell and policy, the cell's faults in words, the policy) for each job of FAULTS."""
    experiment = load_experiment(FAULTS)
    return [
        (
            replace(experiment, cells=(replace(cell, policies=(policy,)),), repeats=1),
            ", ".join(fault.words() for fault in cell.cluster.faults),
            policy.name,
        )
        for cell in experiment.cells
        for policy in cell.policies
    ]


class MemoryWatch:
    """Samples the memory of a job's processes whenever its workers have finished more iterations."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.samples: Samples = {}
        self._processes: dict[str, psutil.Process] = {}
        self._began_s = 0.0

    def testbed(self, cell: Cell) -> Testbed:
        """Return a testbed that registers the process of each node here."""

        class Sampled(Testbed):
            def popen(own, node: str, argv: Sequence[str], *, env: Mapping[str, str], **how: Any) -> Any:
                # Recorded events stay in memory until the job ends, and would look like growth.
                process = super().popen(node, argv, env={k: v for k, v in env.items() if k != EVENTS_OUT}, **how)
                self._processes[node] = psutil.Process(process.pid)
                return process

        return Sampled([NodeSpec(node, cell.cluster.bandwidth.rate(node)) for node in cell.cluster.nodes])

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


def run(experiment: Experiment, out: Path) -> tuple[str, Run, PolicyResult, MemoryWatch]:
    """Run an experiment of one cell and policy. Raises UserError if a testbed is impossible."""
    watch = MemoryWatch()
    (done,) = run_experiment(experiment, out, watch.testbed, watch)
    ((name, (job,)),) = done.runs.items()
    return name, job, summarize(experiment, [done]).cells[0].policies[name], watch


def left_weights(folder: Path, workers: int) -> str | list[str]:
    """Return the digest of the weights from a job that failed after training: a list of several if workers differ, ""
    if not all workers left any.
    """
    files = [folder / f"worker{number}.json" for number in range(workers)]
    digests = {read_worker(file).weights_sha256 or "" for file in files if file.exists()}
    if len(digests) > 1:
        return sorted(digests)
    return "".join(digests) if all(file.exists() for file in files) else ""


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
    name, job, found, watch = run(replace(experiment, cells=(cell,)), out)
    weights = found.weights_sha256 or ""
    trained_s = sum(job.workers[0].iteration_s) if job.workers else watch.seconds
    hooks = [status.hook for status in job.statuses if status.hook is not None]
    return LongTraining(
        policy=name,
        iterations=iterations,
        seconds=trained_s,
        rates=sum(at_s <= trained_s for at_s, _ in cluster.bandwidth.changes),
        weights=weights if isinstance(weights, str) else "workers differ",
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
class Amounts:
    """Amounts to run: `starts` under Prophet on each engine, `tasks` without a check and `checked_tasks` with each,
    seconds of training under each of its policies, and `rounds` of all faults.
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
    """Parts of a soak. Each makes its missing pieces in the folder `out`, and returns its figures. Raises UserError."""

    out: Path
    amounts: Amounts

    def starts(self) -> Any:
        file = self.out / "starts.jsonl"
        if len(read_pieces(file, SoakStart)) < len(wanted_starts(self.amounts.starts)):
            command = [sys.executable, "-m", "tools.soak_starts", str(file.resolve()), str(self.amounts.starts)]
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
        return tasks_of(resumed(file, StressRun, wanted, run, lambda run: (run.check, run.seed)))

    def training(self) -> Any:
        each_s = min(PIECE_S, self.amounts.training_s)
        wanted = [*self.amounts.training_policies] * max(1, round(self.amounts.training_s / each_s))

        def train(number: int, policy: str) -> LongTraining:
            return train_long(policy, each_s, number, self.out / "training" / f"{policy}-{number}")

        file = self.out / "training.jsonl"
        return resumed(file, LongTraining, wanted, train, lambda job: job.policy)

    def faults(self) -> Any:
        jobs = [short_fault_job()] if self.amounts.only_short_faults else fault_jobs()
        jobs *= self.amounts.rounds

        def make(number: int, key: tuple[str, str]) -> FaultRun:
            experiment, fault, policy = jobs[number]
            _, job, found, watch = run(experiment, self.out / "faults" / f"{number}-{policy}")
            digests = found.weights_sha256 or left_weights(job.folder, experiment.cells[0].cluster.workers)
            weights = digests if isinstance(digests, str) else "workers differ"
            longest_s = max((time_s for worker in job.workers for time_s in worker.iteration_s), default=None)
            error, after_s = found.error or "", found.ended_after_s
            return FaultRun(fault, policy, weights, error, after_s, longest_s, watch.seconds)

        wanted, file = [(fault, policy) for _, fault, policy in jobs], self.out / "faults.jsonl"
        return resumed(file, FaultRun, wanted, make, lambda run: (run.fault, run.policy))


def measure(out: Path, results: Path, *, parts: str = ",".join(PARTS), short: int = 0) -> None:
    """Run the missing pieces of the parts, and keep each part's figures. `short`: a smoke test of every part.

    Raises UserError, also if something was wrong under Prophet.
    """
    chosen = parts.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        raise UserError(f"{unknown[0]!r} is no part of the soak; its parts are {', '.join(PARTS)}")
    if {"training", "faults"} & set(chosen):
        reexec_in_user_namespace()
    stored = kept.kept(results, NAME, SoakData)
    data = SoakData() if stored is None else stored.data
    soak = Soak(out, SHORT if short else Amounts())
    for part in chosen:
        done = replace(data, **{part: getattr(soak, part)()})
        if done != data:
            load = round(os.getloadavg()[0], 1)
            data = replace(done, measured={**data.measured, part: here()}, load={**data.load, part: load})
        kept.keep(results, NAME, SoakData, data)
    if wrong := data.wrong():
        print(*wrong, sep="\n")
        raise UserError(f"results that are wrong under Prophet: {len(wrong)}; docs/reliability.md has them")
