"""The tuning of ByteScheduler (Peng et al., SOSP 2019): credit and partition size by Bayesian optimisation.

Rule of this file: which sizes to try next, from those tried before; trying them, in the simulator or in real runs, is
the caller's. The same seed and the same answers give the same tries.

A Gaussian process over (log credit, log partition) predicts the logarithm of an iteration's seconds, and the sizes
tried next are those with the largest expected improvement (Jones, Schonlau and Welch, 1998). The paper does
so too; its program takes about 15 points. Sizes work by their order of magnitude, so here both are logarithms.
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
"""(credit_bytes, partition_bytes) -> seconds of an iteration."""

Floats = NDArray[np.float64]

DEFAULT_CREDIT_BYTES = (128 * 1024, 64 * 1024 * 1024)
DEFAULT_PARTITION_BYTES = (64 * 1024, 16 * 1024 * 1024)
DEFAULT_TRIALS = 15
"""max_num_steps of ByteScheduler's tuner (bytescheduler/common/tuner.py)."""
DEFAULT_INITIAL = 5
"""Tries spread over the ranges before a model is made: fewer do not tell two length scales apart."""
GRID = 25
"""Sizes that are considered in each range, a constant factor apart."""
ALIGNMENT = 4096
"""Unit of sizes, if the range allows: a page."""
EXPLORATION = 0.01
"""Minimum expected improvement that counts, in standard deviations of the tries."""

_LENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Length scales of the process that are compared, as shares of a range."""
_NOISES = (1e-6, 1e-3, 1e-2, 1e-1)
"""Shares of the variance that may be noise."""


@dataclass(frozen=True)
class Trial:
    """Sizes that were tried, in bytes, and the seconds they took."""

    credit_bytes: int
    partition_bytes: int
    seconds: float


@dataclass(frozen=True)
class Tuning:
    """All tries in their order, and the best of them."""

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
    """Look for the credit and the partition size with the least `evaluate(credit, partition)` seconds.

    Both ranges are (least, most) in bytes; equal ends leave one size alone. A credit below a partition is the same as
    one of a partition, so such pairs are not tried. The first `initial` tries are a Latin hypercube, drawn with `seed`;
    `trials` is how many there are in all, or fewer where the ranges have no more sizes. No pair is tried twice.

    Raises UserError for ranges and counts that make no sense, and where `evaluate` gives no positive number of seconds.
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
    """Return each place's expected improvement on the least of `values`, in standard deviations of them.

    `tried` has shape (n, d) and `values` (n,); `places` has shape (m, d), and so the result (m,). Coordinates are in
    the unit cube. A Gaussian process with a Matern 5/2 kernel, a length scale a dimension and noise, by the greatest
    likelihood among fixed choices; its variance is the one of the greatest likelihood for those.
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
    """Return mean and deviation at `places` (Rasmussen and Williams, "Gaussian Processes", 2006, algorithm 2.1)."""
    from scipy.linalg import cho_factor, cho_solve, solve_triangular

    best: tuple[float, tuple[float, ...], float] = (math.inf, (), 0.0)
    for lengths in itertools.product(_LENGTHS, repeat=tried.shape[1]):
        kernel = _matern(tried, tried, lengths)
        for noise in _NOISES:
            factor = cho_factor(kernel + noise * np.eye(len(tried)), lower=True)
            variance = _variance(values, cho_solve(factor, values))
            # Minus twice the logarithm of the likelihood, with the variance that makes it greatest, less constants.
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
    """The most likely variance; all values equal would make it 0, and everything certain."""
    return max(float(values @ weights) / len(values), 1e-12)


def _matern(a: Floats, b: Floats, lengths: tuple[float, ...]) -> Floats:
    apart = (a[:, None, :] - b[None, :, :]) / np.asarray(lengths)
    distance = np.sqrt(5.0 * np.sum(apart**2, axis=2))
    kernel: Floats = (1.0 + distance + distance**2 / 3.0) * np.exp(-distance)
    return kernel


def _sizes(name: str, ends: tuple[int, int]) -> list[int]:
    """Up to GRID sizes from the least to the most, a constant factor apart."""
    least, most = ends
    if not 1 <= least <= most:
        raise UserError(f"{name} is {ends}; give (least, most) in bytes, at least 1")
    sizes = {least, most}
    for size in np.geomspace(least, most, GRID)[1:-1]:
        sizes.add(min(max(round(float(size) / ALIGNMENT) * ALIGNMENT, least), most))
    return sorted(sizes)


def _candidates(credits: list[int], partitions: list[int]) -> NDArray[np.int64]:
    """Pairs of a credit and a partition no larger, shape (n, 2)."""
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
    """Places spread over both ranges, each the candidate nearest to a point of a Latin hypercube, none twice."""
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
