"""The cost of a message and of its bytes on the wire, from the times of pushes and their acknowledgements.

Rule of this file: one pure estimate; bandwidth.py decides which pushes count, and for how long.

The model (results: docs/decisions/telling-costs-apart.md). Push k of s(k) bytes, submitted at start(k), has left the
wire at

    through(k) = max(through(k - 1), start(k)) + overhead + s(k) / rate

and its acknowledgement is seen at through(k) + delay + late(k). late(k) is never negative: the acknowledgement waits
behind answers to pulls on the way back, or something stalls. So the model is a line under the points, not through them.
The estimate is a quantile regression with a low quantile (Koenker and Bassett, 1978), by reweighted least squares.
Acknowledgements seen right after an answer usually had to wait for it, so they hardly count.

The maximum makes the model piecewise linear. With cost(k) = overhead + s(k) / rate and C its sum so far,
through(k) = C(k) + max over j <= k of (start(j) - C(j - 1)), where the maximizing j is the last push that found the
wire idle. So two steps alternate: find these pushes for known costs, then the costs for known pushes. This converges to
a local optimum, so the fit starts from several guesses and takes the result that explains the times best. Thus it tells
a slow wire from one that goes idle between acknowledgements.

A token bucket that lets a burst through at once looks like a negative delay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[Any]

LOW = 0.1
"""Quantile of acknowledgements assumed to be on time."""
BEHIND_AN_ANSWER = 1e-3
"""Weight of an acknowledgement seen right after an answer."""
LEAST_CLEAR = 20
"""Minimum acknowledgements that are not right after an answer; with fewer, all count the same."""
LIKELY_OVERHEAD_S = 0.25e-3
"""Approximate maximum overhead when sizes are too similar to separate it from the rate."""
VARIED = 0.25
"""Minimum scatter of sizes, as a share of their mean, for an estimate of the overhead. With less scatter, the odd sizes
are at odd positions as well."""
SURE = 1e6
"""Weight of the likely overhead when sizes scatter less, relative to the times."""
TOLD_APART = 4.0
"""Sizes differ enough if the times have this many times the weight of the likely value in the overhead."""
CORRELATED = 32
"""Consecutive pushes of similar lateness, which together count as one."""
ROUNDS = 6
"""Maximum alternations between idle positions and costs."""
LEAST_IDLE_S = 1e-6
"""Minimum idle time of the wire. If pushes go one at a time, each after the last acknowledgement, overhead and delay
cannot be separated. Since each push pays for both, all of it then counts as overhead."""
SHARES = (0.25, 0.75)
SPEEDS = (1.0, 0.6)
"""Initial guesses of costs: the share of overhead in a push's time, and factors on this time."""
CLEARLY_BETTER = 0.5
"""In the default explanation, the wire is busy while anything is unacknowledged. Another explanation must leave less
than this share of the deviations: a slow wire must not be taken for a fast one with a long delay."""
LOST_TIME_BETTER = 0.7
"""The same share for a busy wire that occasionally loses time. Its separate stretches fit better in any case."""
WELL_EXPLAINED = 0.003
"""Share of a push's cost; smaller deviations end the search for explanations."""
MOST_RATE = 1e11
"""Maximum rate, in bytes per second; pushes that seem faster never waited for the wire."""


@dataclass(frozen=True)
class PushCosts:
    """Seconds per message, per byte, and from the departure of the last byte to the acknowledgement.

    `told_apart`: sizes differed enough to separate the overhead from the rate.
    """

    overhead_s: float
    seconds_per_byte: float
    ack_delay_s: float
    told_apart: bool = True


def fit_wire(
    starts: Column, finishes: Column, sizes: Column, clear: Column, likely: PushCosts | None = None
) -> PushCosts | None:
    """Return the costs that explain these pushes best; None if none do.

    `starts` (in order) and `finishes` are seconds, `sizes` bytes; `clear` is True where no answer was seen right before
    the acknowledgement. `likely` is an earlier result. It is returned if it also explains these pushes, since several
    results may. Otherwise it is an initial guess, and gives the overhead if sizes are too similar.
    """
    scale = float(sizes.mean())
    if np.count_nonzero(clear) < LEAST_CLEAR:
        clear = np.ones(len(sizes), bool)
    trust = np.where(clear, 1.0, BEHIND_AN_ANSWER)
    found_idle = np.append(True, starts[1:] > np.maximum.accumulate(finishes)[:-1])
    taken = (finishes - starts)[found_idle]
    spans = np.diff(finishes)[~found_idle[1:]]
    usual_s = float(spans.mean()) if len(spans) else float(taken.mean())
    overhead_s = likely.overhead_s if likely else 0.0
    pushes = _Pushes(starts - starts[0], finishes - starts[0], sizes / scale, trust, clear, usual_s, overhead_s)
    best: _Costs | None = None
    known: _Costs | None = None
    if likely is not None:
        known = _Costs(likely.ack_delay_s, likely.overhead_s, likely.seconds_per_byte * scale)
        if pushes.deviation(known) < WELL_EXPLAINED * usual_s:
            return replace(likely, told_apart=False)
    for opens in _beginnings(pushes, found_idle, known):
        costs = pushes.settle(opens)
        if costs is None or (best is not None and costs.deviation >= CLEARLY_BETTER * best.deviation):
            continue
        if best is None or costs.delay_s <= np.median(taken):
            best = costs
            if costs.deviation < WELL_EXPLAINED * usual_s:
                break
    if best is None or best.deviation >= WELL_EXPLAINED * usual_s:
        lost_time = pushes.settle(found_idle, own_delays=True)
        if lost_time is not None and (best is None or lost_time.deviation < LOST_TIME_BETTER * best.deviation):
            best = replace(lost_time, delay_s=best.delay_s if best else 0.0)
    if best is None:
        return None
    per_byte = max(best.per_scale / scale, 1.0 / MOST_RATE)
    cost = best.of(pushes.sizes)[found_idle]
    ahead = taken[taken < 0.5 * cost]
    if best.delay_s < 0 and 2 * len(ahead) > len(taken):
        delay_s = float(np.quantile(ahead, LOW))  # A bucket let these through at once.
    else:
        # If all are late, as after a stall, the lateness is not a property of the wire.
        delay_s = min(best.delay_s, float(np.quantile(taken - cost, LOW)))
    return PushCosts(best.overhead_s, per_byte, max(0.0, delay_s), best.told_apart)


@dataclass(frozen=True)
class _Costs:
    """A solution: costs, the lateness of each push, and the mean deviation. Sizes are in units of their mean."""

    delay_s: float
    overhead_s: float
    per_scale: float
    late: Column = field(default_factory=lambda: np.zeros(0))
    told_apart: bool = False
    deviation: float = float("inf")

    def of(self, sizes: Column) -> Column:
        return self.overhead_s + self.per_scale * sizes


def _beginnings(pushes: _Pushes, found_idle: Column, known: _Costs | None) -> Iterator[Column]:
    """Yield guesses of which pushes found the wire idle; at first, those sent with nothing unacknowledged."""
    yield found_idle
    if known is not None:
        yield pushes.opens(known)
    yield np.append(True, pushes.starts[1:] > pushes.starts[:-1])
    for speed in SPEEDS:
        for share in SHARES:
            yield pushes.opens(_Costs(0.0, speed * share * pushes.usual_s, speed * (1 - share) * pushes.usual_s))


@dataclass(frozen=True)
class _Pushes:
    starts: Column
    finishes: Column
    sizes: Column
    trust: Column
    clear: Column
    usual_s: float
    """Seconds from one acknowledgement to the next, while something is unacknowledged."""
    likely_overhead_s: float

    @property
    def varied(self) -> bool:
        """True if sizes differ by more than the short blocks at the ends of gradients explain."""
        return bool(self.sizes.std() > VARIED)

    def opens(self, costs: _Costs) -> Column:
        """Return a mask of the pushes that find the wire idle under these costs."""
        cost = costs.of(self.sizes)
        earliest = np.maximum.accumulate(self.starts - (np.cumsum(cost) - cost))
        return np.append(True, earliest[1:] > earliest[:-1] + LEAST_IDLE_S)

    def deviation(self, costs: _Costs) -> float:
        """Return the mean deviation under these costs."""
        cost = costs.of(self.sizes)
        spent = np.cumsum(cost)
        through = spent + np.maximum.accumulate(self.starts - (spent - cost))
        return self._deviation(self.finishes - through - costs.delay_s)

    def settle(self, opens: Column, own_delays: bool = False) -> _Costs | None:
        """Find costs that agree with their idle pushes, from a guess. `own_delays`: each stretch has its own delay."""
        costs: _Costs | None = None
        for _ in range(ROUNDS):
            costs = self._solve(opens, own_delays, costs)
            before, opens = opens, self.opens(costs)
            if np.array_equal(before, opens):
                break
        assert costs is not None
        costs = self._solve(opens, own_delays, costs, alike=True)
        if costs.overhead_s <= 0 and costs.per_scale <= 0:
            return None
        return replace(costs, deviation=self._deviation(costs.late))

    def _solve(self, opens: Column, own_delays: bool, costs: _Costs | None, alike: bool = False) -> _Costs:
        """Solve the quantile regression, starting from `costs` or from least squares. Neither cost is below 0.

        With `alike`, if sizes are similar, a ridge penalty pulls the overhead towards the likely one. It is stronger
        the more the times scatter about `costs` compared with LIKELY_OVERHEAD_S. The rest counts as cost of bytes.
        """
        numbers = np.arange(len(self.sizes))
        first = np.maximum.accumulate(np.where(opens, numbers, 0))
        sums = np.cumsum(self.sizes)
        # Since the wire was last idle: pushes, bytes, and the time until the acknowledgement.
        columns = np.column_stack(
            [numbers - first + 1, sums - (sums - self.sizes)[first], self.finishes - self.starts[first]]
        )
        begins = np.flatnonzero((numbers - first) % CORRELATED == 0) if own_delays else np.zeros(1, np.int64)
        stretch = np.searchsorted(begins, numbers, side="right") - 1
        solution, late, ridge, told_apart = None, None if costs is None else costs.late, 0.0, False
        for _ in range(2 if costs else 6):
            weights = self.trust
            if late is not None:
                usual = max(float(np.median(np.abs(late[self.clear]))), 1e-9)
                # A push behind an answer may be late but not early.
                weights = np.where(late > 0, LOW * self.trust, 1 - LOW) / np.maximum(np.abs(late), 0.1 * usual)
                if alike and not ridge:
                    ridge = CORRELATED * LOW * usual / LIKELY_OVERHEAD_S**2 * float(self.trust.mean())
            weighted = columns * weights[:, None]
            means = np.add.reduceat(weighted, begins) / np.add.reduceat(weights, begins)[:, None]
            shifted = means[stretch] if own_delays else means
            moments = (columns - shifted).T @ (weighted - shifted * weights[:, None])
            drawn = ridge + 1e-9 * (moments[0, 0] + weights.sum())
            if alike:
                apart = moments[0, 0] - moments[0, 1] ** 2 / max(moments[1, 1], 1e-300)
                told_apart = self.varied and bool(apart > TOLD_APART * drawn)
                drawn = 0.0 if told_apart else drawn if self.varied else SURE * moments[0, 0]
            moments[0, 0] += drawn
            moments[0, 2] += drawn * self.likely_overhead_s
            solution = np.append(-_not_negative(moments[:2, :2], moments[:2, 2]), 1.0)
            late = (columns - shifted) @ solution
        assert solution is not None and late is not None
        return _Costs(float(means[0] @ solution), -float(solution[0]), -float(solution[1]), late, told_apart)

    def _deviation(self, late: Column) -> float:
        """Return the mean deviation, weighted as in the regression.

        Each deviation counts as at most one push late, so that a few stalls do not decide between explanations.
        """
        deviations = np.where(late > 0, LOW * self.trust * late, (LOW - 1) * late)
        return float(np.minimum(deviations, LOW * self.usual_s).sum() / np.count_nonzero(self.clear))


def _not_negative(moments: Column, right: Column) -> Column:
    """Solve the normal equations for the two costs, with neither below 0."""
    if np.linalg.det(moments) > 0:
        solution = np.linalg.solve(moments, right)
        if solution.min() >= 0:
            return np.asarray(solution)
    overhead, per_size = (max(0.0, right[k] / moments[k, k]) if moments[k, k] > 0 else 0.0 for k in (0, 1))
    return np.array([0.0, per_size] if per_size > 0 else [overhead, 0.0])
