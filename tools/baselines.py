"""`make baselines`: what else a job on a slow network could do, in one run with Prophet: time to an accuracy.

Rule of this file: the ways, running them on the testbed, and what each took. A way that changes the gradients may need
more iterations than another, so what counts is the time until the model is good. The job is tools/baselines_job.py.
Times are seconds.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from prophet_scheduler.core import settings
from prophet_scheduler.lab.launchers import without_jobs
from prophet_scheduler.lab.own_script import Links, testbed_of
from tools.jobs import said_by_ranks

ITERATIONS = 96
EVERY = 4
"""Iterations between two looks at the model."""
FIRST = 10
"""Iterations with exact averages before PowerSGD or local SGD begins: their authors advise some."""
RATES_BPS = (250e6,)
TARGET = 0.85
"""Share of right predictions to reach; 0.9 of the words can be known."""


@dataclass(frozen=True)
class Way:
    """One way to train. `hook` is what the job does, with a `size`: MB of a bucket, rank of a matrix, local steps."""

    words: str
    hook: str = ""
    size: int = 0
    prophet: bool = False


WAYS: Mapping[str, Way] = {
    "ddp": Way("DDP as it comes"),
    "bucket": Way("DDP, buckets of 1 MB", "bucket", 1),
    "prophet": Way("Prophet", prophet=True),
    "fp16": Way("DDP, fp16 hook", "fp16"),
    "prophet-fp16": Way("Prophet, fp16 hook", "fp16", prophet=True),
    "powersgd-4": Way("DDP, PowerSGD of rank 4", "powersgd", 4),
    "prophet-powersgd-4": Way("Prophet, PowerSGD of rank 4", "powersgd", 4, prophet=True),
    "powersgd-1": Way("DDP, PowerSGD of rank 1", "powersgd", 1),
    "local-4": Way("DDP, local SGD, 4 steps", "local", 4),
    "local-16": Way("DDP, local SGD, 16 steps", "local", 16),
}


@dataclass(frozen=True)
class Trained:
    """One run: seconds of each iteration, and the share of right predictions after every EVERY of them."""

    way: str
    bandwidth_bps: float
    iterations_s: Sequence[float]
    right: Sequence[float]

    def seconds_to(self, accuracy: float) -> float | None:
        """Return the time to the first look at a model that is as good; None if there is none."""
        ended_s = list(itertools.accumulate(self.iterations_s))
        looks = zip(ended_s[EVERY - 1 :: EVERY], self.right, strict=True)
        return next((time_s for time_s, right in looks if right >= accuracy), None)


def train(way: str, bandwidth_bps: float) -> Trained:
    """Train once on a testbed of two workers. Raises UserError."""
    command = [sys.executable, "-m", "tools.baselines_job", way]
    own = without_jobs(os.environ)
    if WAYS[way].prophet:
        own |= {settings.DDP_SCHEDULER: "prophet", settings.CACHE: "off"}
    with testbed_of(command, Links(2, bandwidth_bps, 0.0)) as (workers, testbed):
        return Trained(way, bandwidth_bps, **said_by_ranks(command, workers, testbed, own))


def measure(out: Path, results: Path) -> list[list[Trained]]:
    """Train in each way, by rate. Raises UserError."""
    cells = track(list(itertools.product(RATES_BPS, WAYS)), "baselines", console=Console(stderr=True))
    runs = [train(way, rate) for rate, way in cells]
    return [list(together) for _, together in itertools.groupby(runs, lambda run: run.bandwidth_bps)]
