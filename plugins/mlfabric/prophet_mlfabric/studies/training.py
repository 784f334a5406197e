"""A small real SGD problem, trained on the virtual clock (MLfabric, section 2, Eqs. 1 and 2; section 3.1).

Rule of this file: models, gradients, losses. The cluster decides when a gradient is computed and applied.

The problem is logistic regression with an L2 term on synthetic data. It is convex, as section 3.1 assumes, and its
features have very different scales, so that steep directions limit the step size and flat ones the progress.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prophet_mlfabric.studies.cluster import Method, Record, Trainee, mlfabric_a, run
from prophet_mlfabric.studies.settings import Setting
from prophet_scheduler.core.errors import UserError

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class SgdProblem:
    """Logistic regression: `features` of shape (samples, dimensions), `labels` +1 or -1, `regularization` > 0."""

    features: Vector
    labels: Vector
    regularization: float

    @classmethod
    def synthetic(cls, samples: int = 3000, dimensions: int = 30, condition: float = 30.0, seed: int = 0) -> SgdProblem:
        """Return features with variances from 1 down to 1 / `condition`, and a random model's labels, 5 % flipped."""
        random = np.random.default_rng([seed, 10])
        scales = np.sqrt(np.geomspace(1.0, 1.0 / condition, dimensions))
        features = random.normal(size=(samples, dimensions)) * scales
        labels = np.sign(features @ (random.normal(size=dimensions) / scales) + 1e-9)
        labels[random.random(samples) < 0.05] *= -1
        return cls(features, labels, 1e-3)

    def loss(self, model: Vector) -> float:
        """Return the mean loss over all samples."""
        margins = self.labels * (self.features @ model)
        return float(np.logaddexp(0.0, -margins).mean() + 0.5 * self.regularization * model @ model)

    def gradient(self, model: Vector, rows: NDArray[np.int64]) -> Vector:
        """Return the gradient of the mean loss over these samples."""
        features, labels = self.features[rows], self.labels[rows]
        margins = labels * (features @ model)
        weights = -labels / (1.0 + np.exp(np.clip(margins, -500.0, 500.0)))
        gradient: Vector = features.T @ weights / len(rows) + self.regularization * model
        return gradient

    def least_loss(self) -> float:
        """Return the optimum's loss, by Newton's method."""
        model = np.zeros(self.features.shape[1])
        everything = np.arange(len(self.labels))
        for _ in range(50):
            slope = self.gradient(model, everything)
            if np.linalg.norm(slope) < 1e-12:
                break
            odds = 1.0 / (1.0 + np.exp(-(self.features @ model)))
            curvature = self.features.T * (odds * (1 - odds)) @ self.features / len(self.labels)
            model = model - np.linalg.solve(curvature + self.regularization * np.eye(len(model)), slope)
        return self.loss(model)


@dataclass(frozen=True)
class StepSize:
    """Learning rate: `constant`, or `constant` / sqrt(`delay_bound` * t) at the t-th step if a bound is given."""

    constant: float
    delay_bound: int | None = None

    def at(self, step: int) -> float:
        if self.delay_bound is None:
            return self.constant
        return self.constant / math.sqrt(self.delay_bound * max(1, step))


@dataclass
class LossCurve:
    """Loss of the server's model: `losses[i]` at `times_s[i]`, after `updates[i]` updates."""

    times_s: list[float] = field(default_factory=list)
    updates: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def time_to(self, loss: float) -> float:
        """Return the time at which the loss was first at or below `loss`; infinity if never."""
        return next((time for time, now in zip(self.times_s, self.losses, strict=True) if now <= loss), math.inf)

    def updates_to(self, loss: float) -> float:
        return next((count for count, now in zip(self.updates, self.losses, strict=True) if now <= loss), math.inf)


@dataclass
class Sgd(Trainee):
    """SGD with momentum on a problem (Eqs. 1 and 2): a learner for the cluster.

    Each worker draws its batches from its own stream: its i-th update uses the same samples whatever else happens. The
    loss is recorded in `curve` every `every` updates. `record` is that of the run by `train`.
    """

    problem: SgdProblem
    step: StepSize
    momentum: float = 0.0
    batch: int = 32
    every: int = 30
    seed: int = 0
    curve: LossCurve = field(default_factory=LossCurve)
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        zero = np.zeros(self.problem.features.shape[1])
        self._server = self._server_before = zero
        self._streams: dict[int, np.random.Generator] = {}
        self._steps = 0
        self._due = 0

    def read(self) -> Vector:
        return self._server

    def compute(self, worker: int, model: Vector) -> tuple[Vector, float]:
        if worker not in self._streams:
            self._streams[worker] = np.random.default_rng([self.seed, 11, worker])
        rows = self._streams[worker].integers(0, len(self.problem.labels), self.batch)
        update = -self.step.at(self._steps + 1) * self.problem.gradient(model, rows)
        return update, float(np.linalg.norm(update))

    def apply(self, updates: Sequence[Vector]) -> None:
        self._steps += 1
        now, before = self._server, self._server_before
        self._server = now + sum(updates[1:], updates[0]) + self.momentum * (now - before)
        self._server_before = now

    def observe(self, now_s: float, applied: int) -> None:
        if applied >= self._due:
            self._due = applied + self.every
            self.curve.times_s.append(now_s)
            self.curve.updates.append(applied)
            self.curve.losses.append(self.problem.loss(self._server))


def train(
    setting: Setting,
    method: Method,
    problem: SgdProblem,
    step: StepSize,
    horizon_s: float,
    target: float | None = None,
    every: int = 30,
) -> Sgd:
    """Return a learner trained for `horizon_s` virtual seconds, or until its loss was at or below `target`."""
    learner = Sgd(problem, step, method.momentum, every=every, seed=setting.seed)
    learner.observe(0.0, 0)

    def reached() -> bool:
        return target is not None and learner.curve.losses[-1] <= target

    learner.record = run(setting, method, learner, horizon_s=horizon_s, stop=reached)
    learner.observe(learner.record.end_s, len(learner.record.applied_s))
    return learner


def loss_curves(
    setting: Setting,
    delay_bounds: Iterable[int | None],
    problem: SgdProblem,
    constant: float,
    horizon_s: float,
) -> Mapping[int | None, Sgd]:
    """Return the loss over virtual time of MLfabric-A for several delay bounds; None is no bound.

    The step size is C / sqrt(tau_max t) with the same C for all (section 3.1). Without a bound, tau_max is the greatest
    delay observed in such a job.
    """
    trained: dict[int | None, Sgd] = {}
    for bound in delay_bounds:
        method = mlfabric_a(bound)
        worst = bound if bound is not None else max(run(setting, method, horizon_s=horizon_s).delays)
        trained[bound] = train(setting, method, problem, StepSize(constant, worst), horizon_s)
    return trained


def best_step(
    setting: Setting, method: Method, problem: SgdProblem, constants: Sequence[float], target: float, horizon_s: float
) -> tuple[float, Sgd]:
    """Return the constant step size with which a method reaches `target` first, and that run.

    Every method chooses from the same list. A synchronous step sums all workers' updates, so its size is divided by
    their number. Raises UserError if none reaches the target.
    """
    share = setting.workers if method.synchronous else 1
    best: tuple[float, Sgd] | None = None
    limit = horizon_s
    for constant in constants:
        trained = train(setting, method, problem, StepSize(constant / share), limit, target)
        reached = trained.curve.time_to(target)
        if reached < (math.inf if best is None else best[1].curve.time_to(target)):
            best, limit = (constant, trained), reached
    if best is None:
        raise UserError(f"no step of {list(constants)} reaches a loss of {target} in {horizon_s} s: give others")
    return best
