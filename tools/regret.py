"""The cost to a job of finding its best arm, on jobs with randomly drawn times.

Rule of this file: jobs with known true times, and a decider's results on them. Times are seconds of a virtual clock.
The jobs are drawn from seeds, so the figures are the same on every machine.

A job has arms: block sizes, each with a true effect, an imperfect prediction, and the cost of a change. True effects
come from shapes that no decider knows, errors of predictions are correlated, and iterations are noisy, autocorrelated,
with outliers and drift. Regret after n iterations is their time beyond n times the best arm's own time, as a share of
the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from prophet_scheduler.session.tuner import Arm, Model, Tuner

Array = NDArray[np.float64]
SIZES = tuple(64 << 10 << place for place in range(7))
"""Block sizes, in bytes."""
ITERATIONS = 500
COUNTS = (50, 100, 500)
ITERATION_S = 0.3
FIRST = 3
"""Arm with which jobs begin."""
NOISES = (0.01, 0.04, 0.15)
DRIFT = 0.001


@dataclass(frozen=True)
class Family:
    """Kind of jobs. Standard deviations are shares."""

    name: str
    shape: Callable[[np.random.Generator, Array], Array]
    """Returns effects (logarithms of times) of block sizes, given in doublings from the smallest."""
    first_cost: float
    """Cost, in iterations, of a change to blocks that the job has not used before."""
    cost: float = 0.1
    hidden_cost: tuple[float, ...] = ()
    """Cost of a change in each of the iterations after it, in addition to `cost`. Unknown to deciders."""
    error: float = 0.05
    """Standard deviation of predictions, in addition to their common error."""
    correlated: float = 0.0
    outliers: float = 0.01
    changes_at: tuple[int, ...] = ()
    """Iterations from which the job has other true effects and predictions."""
    refined: bool = False
    """True if only predictions change."""
    unsteady: float = 0.0
    """Deviation of the logarithm of the cost of small blocks in predictions, anew at each change."""


class DrawnJob(NamedTuple):
    """A drawn job. `effects` and `predicted` are factors: a row before and after each change, a column for each arm."""

    effects: Array
    predicted: Array
    noise: Array
    """Factor of each iteration's time."""
    family: Family


def valley(random: np.random.Generator, doublings: Array) -> Array:
    """Return effects of a valley: small blocks cost messages, large ones delay more urgent ones."""
    best = random.uniform(0.5, 5.5)
    below, above = random.uniform(0.01, 0.08), random.uniform(0.005, 0.05)
    off = doublings - best
    effects: Array = np.where(off < 0, below * np.abs(off) ** 1.5, above * np.abs(off) ** 1.5)
    return effects + random.normal(0, 0.004, len(doublings))


def dear_messages(random: np.random.Generator, doublings: Array) -> Array:
    """Return effects of costly messages: the time falls with the size to a plateau."""
    effects: Array = random.uniform(0.2, 0.8) * 2.0**-doublings * random.uniform(1, 3)
    return effects + random.normal(0, 0.006, len(doublings))


def flat(random: np.random.Generator, doublings: Array) -> Array:
    """Return effects that hardly differ between sizes."""
    return np.array(random.normal(0, 0.008, len(doublings)))


def cliff(random: np.random.Generator, doublings: Array) -> Array:
    """Return a valley in which sizes at one end take 1.5 to 4 times as long, which predictions miss."""
    effects = valley(random, doublings)
    edge = random.uniform(1.0, 2.5)
    far = doublings < edge if random.random() < 0.5 else doublings > doublings[-1] - edge
    return np.where(far, effects + math.log(random.uniform(1.5, 4.0)), effects)


BYTEPS, DDP = 1.5, 0.1
FAMILIES = (
    Family("valley, new keys", valley, BYTEPS),
    Family("valley", valley, DDP),
    Family("dear messages, new keys", dear_messages, BYTEPS),
    Family("dear messages", dear_messages, DDP),
    Family("flat, new keys", flat, BYTEPS, error=0.03),
    Family("flat", flat, DDP, error=0.03),
    Family("far predictions, new keys", valley, 2.0, error=0.15),
    Family("far predictions", valley, DDP, error=0.15),
    Family("cliff, new keys", cliff, BYTEPS),
    Family("cliff", cliff, DDP),
    Family("dear changes", valley, DDP, hidden_cost=(0.2, 0.4)),
    Family("dear changes, flat", flat, DDP, error=0.03, hidden_cost=(0.2, 0.4)),
    Family("slow together", valley, DDP, correlated=0.5),
    Family("making up", valley, BYTEPS, correlated=-0.3, outliers=0.03),
    Family("changing", valley, DDP, changes_at=(150,)),
    Family("changing, new keys", valley, BYTEPS, changes_at=(150,)),
    Family("refined", valley, DDP, error=0.1, changes_at=(15,), refined=True),
    Family("refined, far", cliff, DDP, error=0.15, changes_at=(40,), refined=True),
    Family("unsteady predictions", valley, DDP, changes_at=(6, 12, 24, 40, 60, 80), refined=True, unsteady=1.0),
)


def draw(family: Family, noise: float, seed: int) -> DrawnJob:
    """Draw the job of this seed; its true effects are the same for each noise."""
    random = np.random.default_rng(seed)
    doublings = np.arange(len(SIZES), dtype=float)
    rows = 1 + len(family.changes_at)
    effects = np.array([family.shape(random, doublings) + math.log(random.uniform(0.6, 1.6)) for _ in range(rows)])
    if family.refined:
        effects = np.repeat(effects[:1], rows, axis=0)
    predicted = np.array([_predicted(random, row, family.error) for row in effects])
    if family.unsteady:
        predicted += 0.2 * np.exp(random.normal(0, family.unsteady, (rows, 1))) * 2.0**-doublings
    scatter = random.normal(0, 1, ITERATIONS)
    share = abs(family.correlated)
    for place in range(1, ITERATIONS):
        scatter[place] = family.correlated * scatter[place - 1] + math.sqrt(1 - share**2) * scatter[place]
    late = np.where(random.random(ITERATIONS) < family.outliers, random.uniform(0.2, 1.5, ITERATIONS), 0.0)
    drift = np.cumsum(random.normal(0, DRIFT, ITERATIONS))
    return DrawnJob(np.exp(effects), np.exp(predicted), np.exp(noise * scatter + late + drift), family)


def _predicted(random: np.random.Generator, effects: Array, error: float) -> Array:
    """Return predictions of `effects` like those of a model of the wire: tilted, damped, and with random errors."""
    doublings = np.arange(len(effects)) - random.uniform(0, len(effects) - 1)
    blind = random.uniform(0.3, 1.1)
    far = np.clip(effects - np.median(effects), -0.3, 0.3)
    tilt = random.normal(0, error) * doublings / len(effects)
    bend = random.normal(0, error) * np.cos(doublings * random.uniform(0.5, 1.5))
    own = random.normal(0, error / 4, len(effects))
    return np.array(np.median(effects) + random.normal(0, 2 * error) + blind * far + tilt + bend + own)


class ByTuner:
    """Decider that is Prophet's tuner, as in a job of this family. Arms are indices into SIZES."""

    def __init__(self, family: Family) -> None:
        self._tuner = Tuner(Model())
        self._costs = family.first_cost, family.cost

    def predicted(self, iterations_s: Sequence[float]) -> None:
        """Take the predicted time of each arm from now on."""
        self._tuner.predict([Arm(arm, float(s), SIZES[arm], "", *self._costs) for arm, s in enumerate(iterations_s)])

    def ended(self, arm: int, iteration_s: float) -> int:
        """Take the time of an iteration with this arm, and return the next arm."""
        self._tuner.observe(arm, iteration_s)
        following = self._tuner.next(arm).arm
        assert isinstance(following, int)
        return following


class Course(NamedTuple):
    """Course of a job: each iteration's arm and time, with costs of changes, and each arm's time without them."""

    arms: NDArray[np.int64]
    took_s: Array
    alone_s: Array
    """A row for each iteration, a column for each arm."""
    job: DrawnJob


def run(job: DrawnJob, decider: Any) -> Course:
    """Run the job with this decider, starting with the arm FIRST."""
    family = job.family
    truths = np.searchsorted(family.changes_at, np.arange(ITERATIONS), side="right")
    alone_s = ITERATION_S * job.effects[truths] * job.noise[:, None]
    arms, took_s = np.zeros(ITERATIONS, np.int64), np.zeros(ITERATIONS)
    had, arm, before = {FIRST}, FIRST, FIRST
    hidden: list[float] = []
    for iteration, truth in enumerate(truths):
        if iteration in (0, *family.changes_at):
            decider.predicted(ITERATION_S * job.predicted[truth])
        cost = 0.0 if arm == before else family.cost if arm in had else family.first_cost
        hidden = hidden[1:] if arm == before else list(family.hidden_cost)
        cost += hidden[0] if hidden else 0.0
        had.add(arm)
        took_s[iteration] = alone_s[iteration, arm] + cost * ITERATION_S * job.effects[truth].min()
        arms[iteration] = before = arm
        arm = decider.ended(arm, float(took_s[iteration]))
    return Course(arms, took_s, alone_s, job)


class Figures(NamedTuple):
    """Figures of several jobs of one family and noise, means unless stated."""

    regret: tuple[float, ...]
    """Regret after each of COUNTS."""
    after_change: float | None
    """Regret of the first 100 iterations after the last change; None if there is none."""
    rests_off: float
    """Share by which the final arm is slower than the best."""
    nine_of_ten: float
    """90th percentile of the same."""


def figures(courses: Iterable[Course]) -> Figures:
    several = list(courses)
    by_course = [(course, course.alone_s.min(axis=1)) for course in several]

    def regret(first: int, end: int) -> float:
        return float(np.mean([each.took_s[first:end].sum() / best[first:end].sum() - 1 for each, best in by_course]))

    changes_at = several[0].job.family.changes_at
    ends = [each.job.effects[-1][each.arms[-1]] / each.job.effects[-1].min() - 1 for each in several]
    return Figures(
        tuple(regret(0, count) for count in COUNTS),
        regret(changes_at[-1], changes_at[-1] + 100) if changes_at else None,
        float(np.mean(ends)),
        float(np.quantile(ends, 0.9)),
    )


@dataclass(frozen=True)
class FamilyRow:
    """One family of jobs at one noise level."""

    family: str
    noise: float
    tuner: Figures


@dataclass(frozen=True)
class Regrets:
    """Data of the page."""

    jobs: int
    rows: Sequence[FamilyRow]


def measure(out: Path, results: Path, *, jobs: int = 20) -> Regrets:
    """Run `jobs` of each family at each noise level."""
    rows = []
    for family, noise in track([(family, noise) for noise in NOISES for family in FAMILIES], "regret"):
        found = figures(run(draw(family, noise, seed), ByTuner(family)) for seed in range(jobs))
        rows.append(FamilyRow(family.name, noise, found))
    return Regrets(jobs, rows)
