"""MLfabric's nine cells: with real transfers, simulated with the same job, and with the paper's 30 workers.

Rule of this file: the configs of configs/mlfabric in, numbers out; no text. Real cells take about half an hour, and
finished ones are not repeated. A simulated cell reads no clock, so a config always gives the same result. Times are
seconds, virtual ones in a simulated cell.

A simulated cluster is the config's: its workers, its rates (the draw of `rate_mix` itself, over time), its slow
computations (from the same streams), the size of its update. The job is also the config's: the model is trained on the
same samples in the same batches with the same steps, and evaluated where a real worker evaluates it. So the same code
evaluates simulated and real cells (prophet_scheduler/lab/results.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from prophet_mlfabric.studies.cluster import ASYNC, RR_SYNC, Record, Trainee, mlfabric_a, run
from prophet_mlfabric.studies.settings import Rates, Setting, Stragglers, TrafficMix
from prophet_mlfabric.studies.tables import TABLE_2, RingComparison, compare_with_ring, ratio_to_target, setting_of
from prophet_mlfabric.studies.training import SgdProblem
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.settings import LAB_DELAY_BOUND
from prophet_scheduler.lab.config import Cell, load_experiment
from prophet_scheduler.lab.job_config import AsynchronousJob
from prophet_scheduler.lab.jobs.datasets import Digits, batches, digits
from prophet_scheduler.lab.jobs.pytorch.asynchronous import CLASSES, LOOKED_AT, Features
from prophet_scheduler.lab.jobs.record import Convergence, Mark, WorkerRecord
from prophet_scheduler.lab.records import ConvergenceResult
from prophet_scheduler.lab.results import converged
from tools.kept import Study
from tools.studies import measured

OURS, RELEASED, RING = "mlfabric", "released", "ring"
"""Contenders in the configs that are also simulated."""
CONFIGS = Path("configs/mlfabric")
CELLS = tuple(f"{compute}-{network}" for compute in ("c1", "c2", "c3") for network in ("n1", "n2", "n3"))
BYTES_A_FEATURE = 4 * CLASSES
PAPER_S = 200.0
SEEDS = (0, 1, 2)

RealCells = dict[str, dict[str, Study]]
"""Kept studies, under the key `cells`, by name of a cell such as `c1-n1`."""
Floats = NDArray[np.float32]
Samples = tuple[Floats, NDArray[np.int64]]
"""Features and labels."""


@dataclass(frozen=True)
class SimulatedCell:
    """A config's cluster: results of the simulated contenders, and the causes of the difference from the ring.

    `update_s` is the time in which the server's NIC receives one update.
    """

    contenders: Mapping[str, ConvergenceResult]
    comparison: RingComparison
    compute_s: float
    update_s: float
    workers: int


@dataclass(frozen=True)
class PaperCell:
    """The paper's cluster. `ratios` are the ring's time over MLfabric's for equal numbers of updates, by seed.

    `comparison` is that of the seed with the median ratio. `to_target` is the ratio to the same loss of a real SGD job,
    each with its best step size, and `dropped` MLfabric's share of dropped updates, both with the first seed.
    """

    ratios: Sequence[float]
    comparison: RingComparison
    to_target: float
    dropped: float


@dataclass(frozen=True)
class MlfabricSimulated:
    """Kept cells, by name such as `c1-n1`."""

    cells: Mapping[str, SimulatedCell]
    paper: Mapping[str, PaperCell]


@lru_cache(maxsize=1)
def _samples(features: int, workers: int) -> tuple[Sequence[Samples], Samples]:
    """Return the samples that each worker of a job trains on, and those on which all evaluate."""
    made = Features(features)

    def of(data: Digits, most: int | None = None) -> Samples:
        return made.of(torch.from_numpy(data.images[:most])).numpy(), data.labels[:most]

    return [of(digits(rank, workers)) for rank in range(workers)], of(digits(), LOOKED_AT)


class DigitsTrainee(Trainee):
    """Job of prophet_scheduler/lab/jobs/pytorch/asynchronous.py for the cluster to train: weights [features, classes].

    It records the same marks and losses as a real job's workers.
    """

    def __init__(self, job: AsynchronousJob, workers: int) -> None:
        self._rate = np.float32(job.learning_rate)
        self._shares, self._looked_at = _samples(job.features, workers)
        self._model: Floats = np.zeros((job.features, CLASSES), np.float32)
        self._batches = [
            batches(len(labels), job.batch_size, job.seed + rank) for rank, (_, labels) in enumerate(self._shares)
        ]
        self._last_loss: tuple[Floats, float] | None = None
        self.marks: list[list[Mark]] = [[] for _ in range(workers)]
        self.convergence = [Convergence() for _ in range(workers)]

    def read(self) -> Floats:
        return self._model

    def begin(self, worker: int, model: Floats, now_s: float) -> None:
        self.marks[worker].append(Mark(now_s, now_s, now_s))
        if self._last_loss is None or self._last_loss[0] is not model:
            self._last_loss = model, self._loss(model)
        self.convergence[worker].keep(now_s, self._last_loss[1], None)

    def compute(self, worker: int, model: Floats) -> tuple[Floats, float]:
        inputs, labels = self._shares[worker]
        chosen = next(self._batches[worker])
        slope: Floats = softmax(inputs[chosen] @ model, axis=1)
        slope[np.arange(len(chosen)), labels[chosen]] -= 1
        # In step, a real step is the mean of all workers' gradients times their number: the sum.
        update: Floats = inputs[chosen].T @ slope * (-self._rate / np.float32(len(chosen)))
        return update, float(np.linalg.norm(update))

    def apply(self, updates: Sequence[Floats]) -> None:
        self._model = self._model + sum(updates[1:], updates[0])

    def _loss(self, model: Floats) -> float:
        inputs, labels = self._looked_at
        chances = softmax(inputs @ model, axis=1)[np.arange(len(labels)), labels]
        return float(-np.log(np.maximum(chances, np.finfo(np.float32).tiny)).mean())


def cluster_of(cell: Cell) -> tuple[AsynchronousJob, Setting, Rates]:
    """Return the cluster of a config's cell. Raises UserError if the cell cannot be simulated.

    Real rates begin once every worker has finished its first iteration, simulated ones with the job.
    """
    job, cluster = cell.job, cell.cluster
    server, worker = cluster.bandwidth.rate("server0"), cluster.bandwidth.default
    if not isinstance(job, AsynchronousJob) or server is None or worker is None:
        raise UserError("a cell of MLfabric needs a job of kind asynchronous, and links with a rate")
    mix = cluster.rate_mix
    period_s = 5.0 if mix is None else mix.period_s
    periods = 1 if mix is None else math.ceil(mix.until_s / period_s)
    values = np.full((cluster.workers, 2, periods), worker / 8)
    for at_s, place, share in () if mix is None else mix.draw(cluster.workers):
        values[place, :, round(at_s / period_s)] *= share
    setting = Setting(
        Stragglers(job.slow_chance, job.slow_factor),
        TrafficMix((worker / 8,), (1.0,), period_s),
        workers=cluster.workers,
        machines=cluster.workers,
        bandwidth=server / 8,
        model_bytes=float(job.features * BYTES_A_FEATURE),
        compute_s=job.compute_s,
        overlap=0.0,  # one tensor, whose gradient is complete only at the end
        eager=True,
        seed=job.seed,  # of the slow computations, whose streams are the real job's
    )
    return job, setting, Rates(setting, values)


def delay_bound(cell: Cell) -> int | None:
    bounds = [policy.env.get(LAB_DELAY_BOUND) for policy in cell.policies if policy.name == OURS]
    return next((int(text) for text in bounds if text), None)


def simulate_cell(cell: Cell) -> SimulatedCell:
    """Simulate a cell's cluster, with all contenders. Raises UserError if the cell cannot be simulated."""
    job, setting, rates = cluster_of(cell)
    methods = {RELEASED: ASYNC, OURS: mlfabric_a(delay_bound(cell)), RING: RR_SYNC}
    trainees = {name: DigitsTrainee(job, setting.workers) for name in methods}
    records = {
        name: run(setting, method, trainees[name], iterations=job.iterations, rates=rates)
        for name, method in methods.items()
    }
    came_to = {}
    for name, trainee in trainees.items():
        workers = worker_records(trainee, records[name], job.iterations if name == OURS else None)
        result = converged([workers], job.target_loss)
        assert result is not None  # every worker has evaluated its loss
        came_to[name] = result.model_copy(update={"curve": []})
    all_train_until_s = min(marks[-1].start for marks in trainees[OURS].marks)
    return SimulatedCell(
        contenders=came_to,
        comparison=compare_with_ring(setting, records[RING], records[OURS], all_train_until_s),
        compute_s=setting.compute_s,
        update_s=setting.model_bytes / setting.bandwidth,
        workers=setting.workers,
    )


def worker_records(trainee: DigitsTrainee, record: Record, iterations: int | None) -> list[WorkerRecord]:
    """Return workers' records. With each worker's number of `iterations`, updates are counted: some may be dropped."""
    workers = []
    for rank, (marks, done) in enumerate(zip(trainee.marks, trainee.convergence, strict=True)):
        delays = [delay for worker, delay in zip(record.by_worker, record.delays, strict=True) if worker == rank]
        if iterations is not None:
            done.sent = done.applied = len(delays)
            done.dropped, done.uncoordinated = iterations - len(delays), 0
            done.greatest_delay = max(delays, default=None)
        workers.append(WorkerRecord(iteration_s=[], marks=marks, rank=rank, convergence=done))
    return workers


def paper_cell(
    compute: str, network: str, problem: SgdProblem, horizon_s: float = PAPER_S, excess: float = 0.02
) -> PaperCell:
    """Return a cell of Table 2, such as ("C1", "N1"), on the paper's cluster. `excess` is that of `ratio_to_target`."""
    settings = [setting_of(compute, network, seed) for seed in SEEDS]
    runs = [[run(setting, method, horizon_s=horizon_s) for method in TABLE_2] for setting in settings]
    comparisons = [
        compare_with_ring(setting, ring, ours, ours.end_s) for setting, (ring, ours) in zip(settings, runs, strict=True)
    ]
    ratios = [each.ratio for each in comparisons]
    return PaperCell(
        ratios=ratios,
        comparison=comparisons[ratios.index(median(ratios))],
        to_target=ratio_to_target(settings[0], problem, horizon_s, excess),
        dropped=runs[0][1].dropped_part,
    )


def measure(out: Path, results: Path) -> RealCells:
    """Run the missing parts of all cells. Raises UserError."""
    return {"cells": {name: measured(CONFIGS / f"{name}.yaml", out / name) for name in CELLS}}


def simulate(out: Path, results: Path) -> MlfabricSimulated:
    """Simulate all cells, also on the paper's cluster. Raises UserError."""
    here = {name: simulate_cell(load_experiment(CONFIGS / f"{name}.yaml").cells[0]) for name in CELLS}
    problem, pairs = SgdProblem.synthetic(), {name: name.upper().split("-") for name in CELLS}
    paper = {name: paper_cell(compute, network, problem) for name, (compute, network) in pairs.items()}
    return MlfabricSimulated(here, paper)
