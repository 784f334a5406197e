"""Jobs that Prophet only watches, its predictions for changes, and runs with each change made.

Rule of this file: the jobs, running them on the testbed, and their results. The job is tools/slept_job.py. Times are
seconds, rates bits per second. A gain is a factor in samples per second.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from pydantic import TypeAdapter

from prophet_scheduler.core import settings
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.status import ObservedTimes
from prophet_scheduler.lab.advice_observed import advice_of
from prophet_scheduler.lab.own_script import Links, testbed_of
from prophet_scheduler.lab.records import read_status
from tools.jobs import said_by_ranks
from tools.kept import resumed

ITERATIONS, UNDER_PROPHET = 20, 60
"""Iterations of a run without Prophet, and under it, which learns in most of them."""
COUNTED, STARTING = 12, 2
"""Iterations at the end of a run that count for a gain, and at its start that count for no mean."""
WITHIN = 0.1
"""Relative error of a gain up to which a prediction counts as right."""


@dataclass(frozen=True)
class ObservedJob:
    """One job: a model's gradients scaled to `size_bytes` in all, its computing times, and each rank's link."""

    way: str
    model: str
    size_bytes: int
    forward_s: float
    backward_s: float
    ranks: int
    rate_bps: float
    delay_s: float = 0.001


JOBS: Sequence[ObservedJob] = (
    ObservedJob("fsdp2", "bert-base", 8_000_000, 0.1, 0.2, 2, 250e6),
    ObservedJob("ddp", "resnet50", 8_000_000, 0.1, 0.2, 2, 250e6),
    ObservedJob("kept", "bert-base", 8_000_000, 0.1, 0.2, 2, 250e6),
    ObservedJob("ddp", "vgg16", 8_000_000, 0.1, 0.2, 2, 250e6),
    ObservedJob("replicate", "bert-base", 8_000_000, 0.1, 0.2, 2, 250e6),
    ObservedJob("ddp", "bert-base", 16_000_000, 0.1, 0.2, 2, 1e9),
    ObservedJob("fsdp2", "bert-base", 16_000_000, 0.1, 0.2, 2, 1e9),
    ObservedJob("ddp", "resnet152", 8_000_000, 0.2, 0.4, 3, 250e6),
    ObservedJob("fsdp2", "resnet50", 8_000_000, 0.2, 0.4, 3, 500e6),
    ObservedJob("ddp", "bert-base", 8_000_000, 0.2, 0.4, 4, 250e6),
    ObservedJob("hsdp", "bert-base", 8_000_000, 0.2, 0.4, 4, 500e6),
    ObservedJob("ddp", "bert-base", 2_000_000, 0.2, 0.4, 2, 1e9),
)


@dataclass(frozen=True)
class WatchedRun:
    """One job: observed times, the predicted gain of each change, and seconds of iterations by change. The job itself
    is the change "".
    """

    job: ObservedJob
    times: ObservedTimes
    predicted: Mapping[str, float]
    iterations_s: Mapping[str, Sequence[float]]

    def measured(self, change: str) -> float:
        """Return the measured gain of a change, from the means of the iterations that count."""
        now_s, changed_s = (fmean(self.iterations_s[name][-COUNTED:]) for name in ("", change))
        return now_s / changed_s * (2 if change == "larger-batch" else 1)

    def mean_s(self, change: str) -> float:
        """Return the mean time of an iteration with this change, learning included."""
        return fmean(self.iterations_s[change][STARTING:])

    @property
    def gains(self) -> Mapping[str, tuple[float, float]]:
        """Gains of the changes that were both predicted and made: (predicted, measured)."""
        made = [change for change in self.iterations_s if change in self.predicted]
        return {change: (self.predicted[change], self.measured(change)) for change in made}


def errors(jobs: Sequence[WatchedRun]) -> list[float]:
    """Return the relative error of each prediction."""
    return [abs(predicted / measured - 1) for each in jobs for predicted, measured in each.gains.values()]


def changes_of(job: ObservedJob) -> Mapping[str, tuple[ObservedJob, Sequence[str], str]]:
    """Return the changes to a job: the changed job, its further options, and the policy."""
    changed = {
        "prophet": (job, ("--iterations", str(UNDER_PROPHET)), "prophet"),
        "twice-the-rate": (replace(job, rate_bps=2 * job.rate_bps), (), ""),
        "half-precision": (job, ("--half",), ""),
        "larger-batch": (job, ("--batch", "2"), ""),
    }
    return changed | ({"kept": (replace(job, way="kept"), (), "")} if job.way == "fsdp2" else {})


def run(job: ObservedJob, more: Sequence[str], policy: str, status: Path | None = None) -> list[float]:
    """Run a job once. Return the seconds of each iteration. Raises UserError."""
    sizes = ("--bytes", job.size_bytes, "--forward", job.forward_s, "--backward", job.backward_s)
    options = map(str, ("--model", job.model, *sizes, "--iterations", ITERATIONS))
    own = {settings.DDP_SCHEDULER: policy, settings.CACHE: "off"} if policy else {}
    own |= {settings.STATUS_OUT: str(status)} if status is not None else {}
    with testbed_of([sys.executable], Links(job.ranks, job.rate_bps, job.delay_s)) as (workers, testbed):
        said = said_by_ranks(["tools.slept_job", job.way, *options, *more], workers, testbed, own)
    return TypeAdapter(list[float]).validate_python(said["iterations_s"])


def watched(job: ObservedJob, out: Path) -> WatchedRun:
    """Run a job that is only watched, then with each change. Raises UserError."""
    status = out / "status.json"
    iterations_s = {"": run(job, (), settings.OBSERVE, status)}
    seen = read_status(status).observed
    if seen is None or seen.times is None:
        raise UserError(f"{job}: nothing was seen of it")
    predicted = {each.change: each.gain for each in advice_of(seen, seen.times).suggestions}
    iterations_s |= {name: run(*change) for name, change in changes_of(job).items()}
    return WatchedRun(job, seen.times, predicted, iterations_s)


def measure(out: Path, results: Path) -> list[WatchedRun]:
    """Run the jobs that have not been run yet, each with all its changes. Raises UserError."""
    out.mkdir(parents=True, exist_ok=True)
    return resumed(out / "jobs.jsonl", WatchedRun, JOBS, lambda _, job: watched(job, out), lambda each: each.job)
