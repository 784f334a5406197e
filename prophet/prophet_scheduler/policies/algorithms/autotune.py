"""The tuning of ByteScheduler (Peng et al., SOSP 2019): credit and partition size by Bayesian optimization.

Rule of this file: it chooses the next sizes to try from the earlier trials; the caller runs the trials, in the
simulator or for real. The same seed and the same answers give the same trials.

A Gaussian process over (log credit, log partition) predicts the logarithm of the iteration time, and the next sizes to
try are those with the largest expected improvement (Jones, Schonlau and Welch, 1998). The paper does so too; its
program takes about 15 points. Only the order of magnitude of sizes matters, so both are logarithms here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.errors import UserError

Evaluate = Callable[[int, int], float]
"""(credit_bytes, partition_bytes) -> seconds per iteration."""

Floats = NDArray[np.float64]

DEFAULT_CREDIT_BYTES = (128 * 1024, 64 * 1024 * 1024)
DEFAULT_PARTITION_BYTES = (64 * 1024, 16 * 1024 * 1024)
DEFAULT_TRIALS = 15
"""max_num_steps of ByteScheduler's tuner (bytescheduler/common/tuner.py)."""
DEFAULT_INITIAL = 5
"""Trials spread over the ranges before the first model: fewer cannot determine two length scales."""
GRID = 25
"""Number of sizes considered in each range, a constant factor apart."""
ALIGNMENT = 4096
"""Unit of sizes, if the range allows: a page."""
EXPLORATION = 0.01
"""Minimum expected improvement that counts, in standard deviations of the trials."""

_LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Candidate length scales of the process, as shares of a range."""
_NOISES = (1e-6, 1e-3, 1e-2, 1e-1)
"""Candidate shares of noise in the variance."""


@dataclass(frozen=True)
class Trial:
    """Sizes tried, in bytes, and the seconds per iteration."""

    credit_bytes: int
    partition_bytes: int
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """All trials in order, and the best of them."""

    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        return min(self.trials, key=lambda trial: trial.seconds)


def tune(
    evaluate: Evaluate,
    *,
    credit_bytes: tuple[int, int] = DEFAULT_CREDIT_BYTES,
    partition_bytes: tuple[int, int] = DEFAULT_PARTITION_BYTES,
    trials: int = DEFAULT_TRIALS,
    initial: int = DEFAULT_INITIAL,
    seed: int = 0,
) -> Tuning:
    """Search for the credit and the partition size that minimize `evaluate(credit, partition)` (seconds).

    Both ranges are (least, most) in bytes; equal ends fix a size. A credit below the partition size acts like one equal
    to it, so such pairs are not tried. The first `initial` trials are a Latin hypercube, drawn with `seed`. `trials` is
    the total number; there are fewer if the ranges have fewer pairs. No pair is tried twice.

    Raises UserError for invalid ranges or counts, and if `evaluate` does not return a positive number.
    """
    if not 1 <= initial <= trials:
        raise UserError(
            f"trials is {trials} and initial is {initial}; give at least one initial try, and as many trials"
        )
    candidates = _candidates(_sizes("credit_bytes", credit_bytes), _sizes("partition_bytes", partition_bytes))
    scaled = _unit_square(candidates)
    tried: list[int] = []
    made: list[Trial] = []
    planned = _latin_hypercube(scaled, initial, np.random.default_rng(seed))
    while len(made) < min(trials, len(candidates)):
        if len(tried) < len(planned):
            choice = planned[len(tried)]
        else:
            gain = expected_improvement(scaled[tried], np.log([trial.seconds for trial in made]), scaled)
            gain[tried] = -1.0
            choice = int(np.argmax(gain))
        credit, partition = (int(size) for size in candidates[choice])
        tried.append(choice)
        made.append(Trial(credit, partition, _checked(evaluate(credit, partition), credit, partition)))
    return Tuning(tuple(made))


def expected_improvement(tried: Floats, values: Floats, places: Floats) -> Floats:
    """Return each place's expected improvement on the least of `values`, in standard deviations of `values`.

    Shapes: `tried` (n, d), `values` (n,), `places` (m, d), result (m,). Coordinates are in the unit cube. The model is
    a Gaussian process with a Matern 5/2 kernel. A length scale per dimension and the noise are chosen by maximum
    likelihood from fixed candidates; the variance is the maximum-likelihood one for these.
    """
    from scipy.special import ndtr

    spread = float(np.std(values))
    standard = (values - np.mean(values)) / (spread if spread > 0 else 1.0)
    mean, deviation = _predict(tried, standard, places)
    gain = float(np.min(standard)) - EXPLORATION - mean
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(deviation > 0, gain / deviation, np.inf * np.sign(gain))
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Floats = np.maximum(gain * ndtr(z) + deviation * density, 0.0)
    return improvement


def _predict(tried: Floats, values: Floats, places: Floats) -> tuple[Floats, Floats]:
    """Return mean and standard deviation at `places` (Rasmussen and Williams, "Gaussian Processes", 2006, alg. 2.1)."""
    from scipy.linalg import cho_factor, cho_solve, solve_triangular

    best: tuple[float, tuple[float, ...], float] = (math.inf, (), 0.0)
    for lengths in itertools.product(_LENGTHS, repeat=tried.shape[1]):
        kernel = _matern(tried, tried, lengths)
        for noise in _NOISES:
            factor = cho_factor(kernel + noise * np.eye(len(tried)), lower=True)
            variance = _variance(values, cho_solve(factor, values))
            # -2 log likelihood at the most likely variance, up to a constant.
            unlikely = len(tried) * math.log(variance) + 2 * float(np.sum(np.log(np.diag(factor[0]))))
            if unlikely < best[0]:
                best = (unlikely, lengths, noise)
    _, lengths, noise = best
    factor = cho_factor(_matern(tried, tried, lengths) + noise * np.eye(len(tried)), lower=True)
    weights = cho_solve(factor, values)
    across = _matern(tried, places, lengths)
    reduction = solve_triangular(factor[0], across, lower=True)
    remaining = np.maximum(1.0 - np.sum(reduction**2, axis=0), 0.0)
    mean: Floats = across.T @ weights
    deviation: Floats = np.sqrt(_variance(values, weights) * remaining)
    return mean, deviation


def _variance(values: Floats, weights: Floats) -> float:
    """Return the most likely variance, above 0: if all values are equal, 0 would make everything certain."""
    return max(float(values @ weights) / len(values), 1e-12)


def _matern(a: Floats, b: Floats, lengths: tuple[float, ...]) -> Floats:
    apart = (a[:, None, :] - b[None, :, :]) / np.asarray(lengths)
    distance = np.sqrt(5.0 * np.sum(apart**2, axis=2))
    kernel: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return kernel


def _sizes(name: str, ends: tuple[int, int]) -> list[int]:
    """Return up to GRID sizes from the least to the most, a constant factor apart."""
    least, most = ends
    if not 1 <= least <= most:
        raise UserError(f"{name} is {ends}; give (least, most) in bytes, at least 1")
    sizes = {least, most}
    for size in np.geomspace(least, most, GRID)[1:-1]:
        sizes.add(min(max(round(float(size) / ALIGNMENT) * ALIGNMENT, least), most))
    return sorted(sizes)


def _candidates(credits: list[int], partitions: list[int]) -> NDArray[np.int64]:
    """Return all pairs of a credit and a partition no larger than it, shape (n, 2)."""
    pairs = [(credit, partition) for credit in credits for partition in partitions if partition <= credit]
    if not pairs:
        raise UserError("every credit_bytes is below every partition_bytes; raise the first or lower the second")
    return np.array(pairs, dtype=np.int64)


def _unit_square(candidates: NDArray[np.int64]) -> Floats:
    logs = np.log(candidates.astype(np.float64))
    least, most = logs.min(axis=0), logs.max(axis=0)
    scaled: Floats = (logs - least) / np.where(most > least, most - least, 1.0)
    return scaled


def _latin_hypercube(scaled: Floats, count: int, generator: np.random.Generator) -> list[int]:
    """Return distinct indices spread over both ranges: the candidates nearest to the points of a Latin hypercube."""
    columns = [(generator.permutation(count) + generator.random(count)) / count for _ in range(scaled.shape[1])]
    chosen: list[int] = []
    for point in np.stack(columns, axis=1)[: len(scaled)]:
        away = np.sum((scaled - point) ** 2, axis=1)
        away[chosen] = np.inf
        chosen.append(int(np.argmin(away)))
    return chosen


def _checked(seconds: float, credit: int, partition: int) -> float:
    if not (math.isfinite(seconds) and seconds > 0):
        raise UserError(
            f"evaluate gave {seconds} seconds for credit_bytes {credit} and partition_bytes {partition}; "
            "it must give a number above 0"
        )
    return seconds
