"""The choice of the job's next arm, from rough predictions and noisy measurements.

Rule of this file: pure code without clock, thread or file. Its inputs are predicted and measured iteration times, in
seconds; its output is the arm for the next iterations. The host decides what an arm is: a block size, another way of
averaging, or the engine's own.

The model. With t(n) the time of iteration n, under arm a(n),

    log t(n) = log predicted(a(n)) + level(n) + f(a(n)) + c(k) + e(n)

The level is a random walk: the load from other work varies. c(k) is the time that a change of arm adds to the k-th
iteration after it, beyond the expected cost, and 0 later: the wire has to drain and refill. f is the error of an arm's
prediction beyond the level. It is a Gaussian process over arms with four parts: one shared by all arms of a kind, one
linear in the logarithm of the block size (the overhead), one smooth in it, and one of each arm alone. e is noise. For a
given size of f and of e, the belief about level, c and f is Gaussian, so a Kalman filter (Kalman, 1960) tracks it
exactly. There is one for each of several sizes of both, and iterations show which are likely.

A *look* is a trial of an arm for a few iterations. The next arm has the least expected time over the rest of the job,
counting the value of a look. For each arm and each length of a look, this time is the cost of switching to the arm, the
time of the look itself, and then the expected minimum over all arms given the look's results. This is the knowledge
gradient for correlated beliefs (Frazier, Powell and Dayanik, 2009) with looks of several iterations (Frazier and
Powell, 2010). The job rests when no look is worth its cost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """Parameters of errors and noise. "Deviation" means the standard deviation of the logarithm of a time."""

    level: float = 0.1
    """Initial deviation of the level, the error shared by all predictions."""
    drift: float = 0.001
    """Deviation of the level's step from one iteration to the next."""
    kind: float = 0.1
    """Deviation of the error shared by all arms of a kind."""
    slope: float = 0.01
    """Deviation of the error for each doubling of the block size."""
    smooth: float = 0.05
    """Deviation of the error shared by arms of similar block size."""
    reach: float = 1.5
    """Length scale of that error over block sizes, in doublings."""
    own: float = 0.012
    """Deviation of each arm's own error."""
    ageing: float = 0.0001
    """Deviation of each arm's step from one iteration to the next, so that old measurements count less."""
    trust: float = 0.25
    """Preference for small errors: doubling the scale of errors divides its prior probability by 2**trust."""
    moved: float = 0.5
    """Share of a prediction's change by which measured times are expected to change, and this share's deviation."""
    noise: float = 0.02
    """Most likely deviation of an iteration, before any is measured."""
    spread: float = 1.5
    """Deviation of that deviation's logarithm, before any iteration is measured."""
    far: float = 3.0
    """Deviations beyond which a measurement is clipped."""
    outliers: float = 0.01
    """Share of measurements that may have any logarithm, per unit of it."""
    going: float = 0.4
    """Uncertainty of the cost of switching to an arm, as a share of that cost."""
    change: float = 0.1
    """Deviation of the time that a change adds to each of the first iterations after it, beyond the expected cost."""
    other: float = 0.45
    """Deviation of the level's step when the job is known to change."""
    left: float = 120.0
    """Minimum number of iterations that the job is expected to have left."""


_SCALES = 0.25 * 2.0 ** np.arange(5)
_NOISES = 0.005 * 2.0 ** np.arange(7)
SCALES, NOISES = np.repeat(_SCALES, len(_NOISES)), np.tile(_NOISES, len(_SCALES))
"""Possible jobs: factors on the arms' deviations, which say how well predictions hold, and deviations of the noise."""
SLOWED = 2
"""Iterations that a change may slow."""
FIXED = 1 + SLOWED
"""Elements of the state before those of the arms: the level, and the times that a change adds."""
LOOKS = (1, 3, 9, 27)
"""Lengths of a look, in iterations."""
NODES, MOST_NODE = 25, 3.5
"""Quadrature over the results of a look: number of points, and the outermost point in standard deviations."""
MOST_LOG = 3.0
"""Maximum log of an arm's relative time: beyond twenty times as long, worse makes no difference."""


@dataclass(frozen=True)
class Arm:
    """One choice. `name` identifies it; arms of one `kind` share prediction errors.

    Switching to the arm costs `first_cost` the first time and `cost` later, both in iterations. The cost is spread over
    `lasts` iterations; with 0 it falls into one unreported iteration.
    """

    name: Hashable
    predicted_s: float
    block_bytes: float
    kind: Hashable = ""
    first_cost: float = 0.1
    cost: float = 0.1
    lasts: int = 1

    @property
    def doublings(self) -> float:
        """Base-2 logarithm of the block size in MiB."""
        return math.log2(self.block_bytes / (1 << 20))


@dataclass(frozen=True)
class Look:
    """The next arm, the minimum `iterations` to spend on it, and the expected `gain` as a share of the time."""

    arm: Hashable
    iterations: int
    gain: float


@dataclass(frozen=True)
class Belief:
    """Belief about an arm: `iteration_s`, its relative standard `error`, and the number of iterations `seen`."""

    iteration_s: float
    error: float
    seen: int


class Going:
    """Cost of switching to arms, in iterations, as expected and as observed."""

    def __init__(self) -> None:
        self._current: Hashable = None
        self._each, self._comes = 0.0, 0  # cost in each of the next iterations, and the number of these
        self.since = SLOWED  # iterations since the switch to the present arm
        self._spent = 0.0  # cost of the switch to the present arm, as observed so far
        # Sum over first switches of observed / expected extra cost, and their number; each begins with a prior of 1.
        self._dear = self._paid = 1.0

    def cost(self, arm: Arm, known: bool) -> float:
        """Return the expected cost of switching to this arm, given the observed costs of first switches."""
        return arm.cost + (0.0 if known else arm.first_cost - arm.cost) * self._dear / self._paid

    def iteration(self, arm: Arm, known: bool) -> float:
        """Record an iteration of this arm. Return the part of the switching cost that falls into it."""
        came, self._current = self._current not in (None, arm.name), arm.name
        self.since = int(not arm.lasts) if came else self.since + 1
        if came:
            self._each, self._comes = self.cost(arm, known) / max(1, arm.lasts), arm.lasts
            self._spent = 0.0
        share = self._each if self._comes else 0.0
        self._comes = max(0, self._comes - 1)
        return share

    def spent(self, arm: Arm, beyond: float) -> None:
        """Record by how much an iteration that bears part of the cost exceeded the arm's expected time."""
        self._spent += beyond
        if not self._comes:
            self.pay(arm, self._spent)

    def pay(self, arm: Arm, spent: float, share: float = 1.0) -> None:
        """Learn from this `share` of the cost of a first switch to an arm."""
        expected = share * (arm.first_cost - arm.cost)
        if expected > 0:
            self._dear += max(0.0, spent - share * arm.cost) / expected
            self._paid += 1


@dataclass
class Tuner:
    """The arms of one job, the beliefs about them, and the choice of the next arm."""

    model: Model = field(default_factory=Model)

    def __post_init__(self) -> None:
        self._arms: dict[Hashable, Arm] = {}
        """Arms in the order of the state."""
        self._places: dict[Hashable, int] = {}
        # State: the level, the times that a change adds, then each arm's prediction error; a row for each possible job.
        self._mean = np.zeros((len(SCALES), FIXED))
        fixed = np.diag([self.model.level**2, *[self.model.change**2] * SLOWED])
        self._covariances = np.tile(fixed, (2, len(SCALES), 1, 1))
        """Covariance of the state, and what it would be without any measurement."""
        off = np.log(NOISES / self.model.noise) / self.model.spread
        self._likelihood = -self.model.trust * np.log(SCALES) - 0.5 * off**2
        self._seen: dict[Hashable, int] = {}
        self._measured: set[Hashable] = set()
        """Arms with a measurement that has counted."""
        self._going = Going()
        self._fresh = False
        self._off = np.zeros(len(SCALES))

    # Inputs.

    def predict(self, arms: Collection[Arm]) -> None:
        """Use these predictions, of new and known arms, from here on. Arms that are no longer predicted and were never
        observed are forgotten.

        A prediction changes because the job has changed, or because more is known about it. In the first case, times of
        measured arms change as much. In the second, they stay as measured. The next iterations show which it is.
        """
        self._forget(set(self._places) - {arm.name for arm in arms} - set(self._seen))
        known = [arm for arm in arms if arm.name in self._places]
        if known:
            moves = np.zeros(self._mean.shape[1])
            for arm in known:
                moves[self._places[arm.name]] = math.log(arm.predicted_s / self._arms[arm.name].predicted_s)
            # If measured times stayed the same, the mean would change by this, since it is linear in log(measured /
            # predicted).
            stays = (self._covariances[0] @ np.linalg.inv(self._covariances[1])) @ moves - moves
            self._mean += (1 - self.model.moved) * stays
            unsure = self.model.moved * stays
            self._covariances += unsure[:, :, None] * unsure[:, None, :]
            # The whole job may have changed in a way that predictions do not show.
            self._covariances[..., 0, 0] += np.mean((self.model.moved * moves[FIXED:]) ** 2)
        self._arms.update({arm.name: arm for arm in known})
        new = [arm for arm in arms if arm.name not in self._places]
        if new:
            self._add(new)
        self._places = {name: FIXED + place for place, name in enumerate(self._arms)}

    def _forget(self, names: Collection[Hashable]) -> None:
        gone = [self._places[name] for name in names]
        self._mean = np.delete(self._mean, gone, axis=1)
        self._covariances = np.delete(np.delete(self._covariances, gone, axis=-2), gone, axis=-1)
        self._arms = {name: arm for name, arm in self._arms.items() if name not in names}
        self._places = {name: FIXED + place for place, name in enumerate(self._arms)}

    def _add(self, new: Sequence[Arm]) -> None:
        """Add new arms, with beliefs inferred from the other arms."""
        count = len(self._arms)
        prior = self._prior([*self._arms.values(), *new])
        gain = np.linalg.solve(prior[:count, :count], prior[:count, count:]).T
        rest = prior[count:, count:] - gain @ prior[:count, count:]
        rest = SCALES[:, None, None] ** 2 * rest + gain @ self._covariances[..., FIXED:, FIXED:] @ gain.T
        across = gain @ self._covariances[..., FIXED:, :]
        self._mean = np.concatenate([self._mean, self._mean[:, FIXED:] @ gain.T], axis=1)
        upper = np.concatenate([self._covariances, across.swapaxes(-1, -2)], axis=-1)
        self._covariances = np.concatenate([upper, np.concatenate([across, rest], axis=-1)], axis=-2)
        self._arms.update({arm.name: arm for arm in new})

    def _prior(self, arms: Sequence[Arm]) -> Array:
        model = self.model
        sizes = np.array([arm.doublings for arm in arms])
        apart = sizes[:, None] - sizes
        same = np.array([[a.kind == b.kind for b in arms] for a in arms])
        alike = model.kind**2 + model.slope**2 * np.outer(sizes, sizes)
        alike = alike + model.smooth**2 * np.exp(-0.5 * (apart / model.reach) ** 2)
        prior: Array = same * alike + np.eye(len(arms)) * model.own**2
        return prior

    def observe(self, name: Hashable, iteration_s: float) -> None:
        """Record the time of an iteration under this arm."""
        model, arm = self.model, self._arms[name]
        seen = self._seen.get(name, 0)
        going = self._going.iteration(arm, known=seen > 0)
        since = self._going.since
        self._fresh = self._fresh or not since
        self._seen[name] = seen + 1
        self._covariances[..., 0, 0] += model.drift**2
        steps = np.arange(FIXED, self._mean.shape[1])
        self._covariances[..., steps, steps] += model.ageing**2
        if going > self._hiding:
            self._going.spent(arm, self._beyond(name, iteration_s))
            return
        slowed = (1 + since,) if since < SLOWED else ()
        added = (1 + going) * math.exp(sum(self._believed()[0][place] for place in slowed)) - 1
        noise = NOISES**2 + (model.going * added) ** 2
        self._take(name, iteration_s / (1 + going), noise, slowed)
        self._fresh = False

    @property
    def _hiding(self) -> float:
        """Cost, in iterations, above which the iteration that pays it says nothing about the arm's speed."""
        return self.model.kind / self.model.going

    def opened(self, name: Hashable, iteration_s: float) -> None:
        """Record the last of the iterations that paid for the job's first arm."""
        arm = self._arms[name]
        self._going.pay(arm, self._beyond(name, iteration_s), 1 / arm.lasts)

    def _beyond(self, name: Hashable, iteration_s: float) -> float:
        """Return the excess of this iteration over the arm's expected time, in iterations."""
        return max(0.0, iteration_s / self.beliefs()[name].iteration_s - 1)

    def recall(self, beliefs: Iterable[tuple[Hashable, Belief]]) -> None:
        """Adopt beliefs about arms from an earlier run of the job. They may have changed somewhat since, and the level
        more.
        """
        for name, belief in beliefs:
            self._take(name, belief.iteration_s, belief.error**2 + self.model.own**2)
        self.another()

    def _take(self, name: Hashable, iteration_s: float, noise: float | Array, slowed: Sequence[int] = ()) -> None:
        """Learn from a measurement with variance `noise`; `slowed`: state indices of the times that a change added.

        An arm's first measurement may be far from its prediction, except for the job's first arm. If a measured arm is
        far off twice in a row on the same side, the job has changed; while a change slows it, this counts for little.
        """
        new = bool(self._measured) and name not in self._measured
        self._measured.add(name)
        far_off, place = self.model.far, self._places[name]
        parts = [0, *slowed, place]
        off = math.log(iteration_s / self._arms[name].predicted_s) - self._mean[:, parts].sum(axis=1)
        variance = self._shown(parts)[1] + noise
        far = np.abs(off) > far_off * np.sqrt(variance)
        density = np.exp(-0.5 * off**2 / variance) / np.sqrt(2 * math.pi * variance)
        self._likelihood += np.log(density + self.model.outliers)
        self._likelihood -= self._likelihood.max()
        if new:
            self._covariances[..., place, place] += np.where(far, off**2, 0.0)
        elif not slowed:
            self._covariances[..., 0, 0] += np.where(far & (self._off * off > 0), off**2, 0.0)
        self._off = np.where(far & (not new) & (not slowed), off, 0.0)
        shown, variance = self._shown(parts)
        variance += noise + np.where(far & (not new) & bool(slowed), off**2, 0.0)
        most = far_off * np.sqrt(variance)
        self._learn(shown, variance, np.clip(off, -most, most))

    def _shown(self, parts: Sequence[int]) -> tuple[Array, Array]:
        """Return the covariance of the state with the sum of the elements at `parts`, and the variance of that sum."""
        shown = self._covariances[0][:, parts].sum(axis=1)
        return shown, shown[:, parts].sum(axis=1)

    def _learn(self, shown: Array, variance: Array, off: Array) -> None:
        """Apply a Kalman update: a measurement with covariance `shown` and this variance is `off` the belief."""
        gain = shown / variance[:, None]
        self._mean += gain * off[:, None]
        self._covariances[0] -= gain[:, :, None] * shown[:, None, :]

    def another(self) -> None:
        """Note that the job changes here: its next iterations determine a new level."""
        self._covariances[..., 0, 0] += self.model.other**2

    # Results.

    @property
    def settling(self) -> bool:
        """True if no iteration has counted since the switch to the present arm."""
        return self._fresh

    @property
    def _weights(self) -> Array:
        """Probability of each possible job."""
        weights = np.exp(self._likelihood)
        return np.asarray(weights / weights.sum())

    def _believed(self) -> tuple[Array, Array]:
        """Return the mean and covariance of the state, averaged over all possible jobs."""
        weights = self._weights
        mean = weights @ self._mean
        apart = self._mean - mean
        return mean, np.einsum("s,sij->ij", weights, self._covariances[0] + apart[:, :, None] * apart[:, None, :])

    def beliefs(self) -> dict[Hashable, Belief]:
        """Return the present belief about each arm."""
        mean, covariance = self._believed()
        beliefs = {}
        for name, arm in self._arms.items():
            place = self._places[name]
            variance = covariance[0, 0] + covariance[place, place] + 2 * covariance[0, place]
            iteration_s = arm.predicted_s * math.exp(mean[0] + mean[place])
            beliefs[name] = Belief(iteration_s, math.sqrt(max(0.0, variance)), self._seen.get(name, 0))
        return beliefs

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of an iteration's time."""
        return math.sqrt(self._weights @ NOISES**2)

    def lead(self, name: Hashable, others: Collection[Hashable]) -> float:
        """Return this arm's lead over the best of `others`, in standard deviations; infinite without any others."""
        mean, covariance = self._believed()
        logs = {one: math.log(self._arms[one].predicted_s) + mean[self._places[one]] for one in (name, *others)}
        if not others:
            return math.inf
        here, there = self._places[name], self._places[best := min(others, key=logs.__getitem__)]
        variance = covariance[here, here] + covariance[there, there] - 2 * covariance[here, there]
        return float((logs[best] - logs[name]) / math.sqrt(variance + 1e-12))

    def next(self, current: Hashable, possible: Collection[Hashable] | None = None) -> Look:
        """Return the arm for the next iterations, out of the `possible` ones (None for all) and the `current` one.

        If `current` is not a known arm, leaving it is worth any cost.
        """
        names = [name for name in self._places if possible is None or name in possible or name == current]
        here = names.index(current) if current in self._places else None
        places = np.array([self._places[name] for name in names])
        arms = [self._arms[name] for name in names]
        mean, covariance = self._believed()
        logs = np.array([math.log(arm.predicted_s) for arm in arms]) + mean[places]
        logs -= logs.min() if here is None else logs[here]
        added = np.exp(mean[1:FIXED])
        costs = np.array([self._going.cost(arm, arm.name in self._seen) for arm in arms])
        going = np.maximum(0.0, (1 + costs) * added[0] + added[1:].sum() - SLOWED)
        if here is not None:
            going[here] = 0.0
        left = max(self.model.left, float(sum(self._seen.values())))
        shown = covariance[:, [0]] + covariance[:, places]
        # Row a: covariance of each arm with a look at arm a.
        told = shown[places].T
        own = shown[0] + shown[places, np.arange(len(arms))]
        nodes, weights = _quadrature()
        looks = np.array(LOOKS, dtype=float)
        noise = self.noise**2
        hidden = noise + np.diag(covariance)[1:FIXED] + (self.model.going * (added - 1)) ** 2
        of_mean = self._unsure(arms, costs, hidden, noise)
        if here is not None:
            of_mean[here] = noise / looks
        variance = own[:, None] + of_mean + self.model.drift**2 * looks / 3
        spread = told[:, None, :] / np.sqrt(variance)[:, :, None]
        later = going * np.ones((len(arms), 1))
        np.fill_diagonal(later, 0.0)
        # Averaged over all results of a look, each arm's expected time must equal its time believed now.
        means = logs - 0.5 * spread**2
        outcomes = np.exp(np.minimum(means[..., None, :] + spread[..., None, :] * nodes[:, None], MOST_LOG))
        least = (outcomes + later[:, None, None, :] / left).min(axis=-1) @ weights
        spent = looks * np.exp(np.minimum(logs, MOST_LOG))[:, None]
        total = going[:, None] + spent + (left - looks) * least
        best, look = divmod(int(np.argmin(total)), len(LOOKS))
        stay = total.max() if here is None else total[here].min()
        return Look(names[best], LOOKS[look], float(stay - total[best, look]) / left)

    def _unsure(self, arms: Sequence[Arm], costs: Array, hidden: Array, noise: float) -> Array:
        """Return the measurement variance of a look at each arm, [arms, LOOKS]; infinite where the cost of the switch
        hides every iteration of the look. `hidden`: variances of the SLOWED iterations after a change; `noise`: the
        variance of each later one.
        """
        lasts = np.array([[arm.lasts] for arm in arms], dtype=float)
        untold = lasts == 0
        first = untold + lasts * (costs[:, None] > self._hiding * lasts)
        passed = np.array(LOOKS, dtype=float) + untold
        slowed = np.arange(SLOWED)
        shown = ((first[..., None] <= slowed) & (slowed < passed[..., None])) @ (1 / hidden)
        shown += np.maximum(0.0, passed - np.maximum(SLOWED, first)) / noise
        with np.errstate(divide="ignore"):
            return np.asarray(1 / shown)


@cache
def _quadrature() -> tuple[Array, Array]:
    """Return points of the standard normal distribution, and their weights."""
    nodes = np.linspace(-MOST_NODE, MOST_NODE, NODES)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()
