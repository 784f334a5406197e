"""Measures of a simulated run beyond its iteration times: waits for gradients, processor and link utilisation.

Rule of this file: arithmetic on the records of worker 0. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet_scheduler.core.events import EventKind, QueueKind
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.simulate.run import WORKER, SimulatedRun

BINS = 200
"""Number of points of an iteration's utilisation over time."""


@dataclass(frozen=True)
class OverTime:
    """One iteration, from backward to backward, in equal bins: processor utilisation and bytes per second."""

    period_s: float
    processor: list[float]
    uplink_bytes_per_s: list[float]
    downlink_bytes_per_s: list[float]


@dataclass(frozen=True)
class Measures:
    """Measures in results.json for simulated policies only. `events` is the number of simulated events."""

    wait_by_gradient_s: list[float]
    processor_utilisation: float
    uplink_bytes_per_s: float
    downlink_bytes_per_s: float
    over_time: OverTime
    events: int


def measures(run: SimulatedRun, profile: Profile, warmup: int) -> Measures:
    """Return the measures for results.json: medians over the complete iterations after the first `warmup`."""
    whole = range(warmup, run.marks.shape[1] - 1)  # all but the last, whose next forward pass is not in the run
    waits = np.array([waits_of(run, profile, iteration) for iteration in whole])
    shares = [utilisation(run, iteration, 1) for iteration in whole]
    last = whole[-1]
    period_s = float(run.marks[WORKER]["backward_s"][last + 1] - run.marks[WORKER]["backward_s"][last])
    over_time = [[round(float(value), 4) for value in series] for series in utilisation(run, last)]
    return Measures(
        wait_by_gradient_s=[float(value) for value in np.median(waits, axis=0)],
        processor_utilisation=float(np.median([processor[0] for processor, _, _ in shares])),
        uplink_bytes_per_s=float(np.median([up[0] for _, up, _ in shares])),
        downlink_bytes_per_s=float(np.median([down[0] for _, _, down in shares])),
        over_time=OverTime(period_s, *over_time),
        events=run.happenings,
    )


def waits_of(run: SimulatedRun, profile: Profile, iteration: int) -> list[float]:
    """Return the seconds that forward waits for each gradient in an iteration of worker 0 (paper, Eq. 2 and 3).

    Gradient i is back at u(i), and p(i) = max(p(i-1), u(i)) + forward seconds of layer i. The wait for gradient i > 0
    is (u(i) - p(i-1))+. The wait for gradient 0 is u(0) - c(0). Their sum is the paper's T_wait.
    """
    marks = run.marks[WORKER][iteration]
    returned = _returned(run, profile, iteration, marks["backward_s"], run.marks[WORKER][iteration + 1]["backward_s"])
    waits = []
    done = float(marks["end_s"])
    for index, gradient in enumerate(profile.gradients):
        waits.append(max(0.0, returned[index] - done))
        done = max(done, returned[index]) + gradient.forward_s
    return waits


def _returned(run: SimulatedRun, profile: Profile, iteration: int, begin_s: float, end_s: float) -> NDArray[np.float64]:
    """Return when each gradient was completely back, from the events between `begin_s` and `end_s`."""
    pulls = run.events["queue"] == QueueKind.PULL
    last = QueueKind.PULL if pulls.any() else QueueKind.PUSH  # a collective has no pulls
    events = run.events[(run.events["kind"] == EventKind.FINISH) & (run.events["queue"] == last)]
    events = events[(events["time_s"] > begin_s) & (events["time_s"] <= end_s)]
    members = run.job_of(iteration).members_by_id
    ids, places = np.unique(events["gradient"], return_inverse=True)
    by_id = np.full(len(ids), begin_s)
    np.maximum.at(by_id, places, events["time_s"])
    returned = np.full(len(profile.gradients), begin_s)
    for id_, time_s in zip(ids.tolist(), by_id.tolist(), strict=True):
        for gradient in members.get(id_, ()):
            returned[gradient] = max(returned[gradient], time_s)
    return returned


def utilisation(
    run: SimulatedRun, iteration: int, bins: int = BINS
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (processor utilisation, bytes per second up, bytes per second down) of worker 0, in `bins` equal parts of
    an iteration from backward to backward.
    """
    marks = run.marks[WORKER]
    edges = np.linspace(marks[iteration]["backward_s"], marks[iteration + 1]["backward_s"], bins + 1)
    width = edges[1] - edges[0]
    computing = run.computing
    processor = _spread(computing["started_s"], computing["finished_s"], np.ones(len(computing)), edges) / width
    rates = []
    for down in (0, 1):
        messages = run.links[run.links["down"] == down]
        # A message that passes a token bucket at once has no duration, so it gets a very short one.
        lengths = np.maximum(messages["finished_s"] - messages["started_s"], width / 1e3)
        ends = messages["started_s"] + lengths
        rates.append(_spread(messages["started_s"], ends, messages["bytes"] / lengths, edges) / width)
    return processor, rates[0], rates[1]


def _spread(
    begin: NDArray[Any], end: NDArray[Any], weights: NDArray[Any], edges: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return, for each bin, the integral of the sum of all `weights[i]` from `begin[i]` to `end[i]`."""

    def before(times: Sequence[float] | NDArray[Any]) -> NDArray[np.float64]:
        """Return, for each edge, the integral up to it of the sum of steps of `weights` at `times`."""
        order = np.argsort(times)
        ranked, total = np.asarray(times)[order], np.concatenate([[0.0], np.cumsum(weights[order])])
        moment = np.concatenate([[0.0], np.cumsum(weights[order] * ranked)])
        place = np.searchsorted(ranked, edges)
        integral: NDArray[np.float64] = total[place] * edges - moment[place]
        return integral

    result: NDArray[np.float64] = np.diff(before(begin) - before(end))
    return result
