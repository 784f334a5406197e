"""Ends of jobs whose workers have more messages to send than a socket of the released ps-lite bears.

Rule of this file: which jobs are started, and how their ends are counted. Starts of the policies are interleaved. A
start that is counted already is not made again, so it can be interrupted and goes on with more starts later. None is
repeated for how it ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prophet_scheduler.core.units import parse_rate
from prophet_scheduler.engines.spec import STOCK
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.session import testbed_of
from prophet_scheduler.lab.testbed import reexec_in_user_namespace
from tools.builds import Ended, Limits, ManyGradientsJob, provide_build, run_job, unfused
from tools.kept import resumed

POLICIES = (STOCK, "fifo", "p3", "prophet")
SIZE_BYTES = 4_096
ITERATIONS = 3
FIRST_PORT = 24700
PORTS = 250
"""Number of ports taken in turn, since one stays busy for a while."""


@dataclass(frozen=True)
class Start:
    """One job and how it ended; `seconds` is its duration."""

    policy: str
    end: str
    stage: str
    iteration: int
    weights: str
    seconds: float
    why: str


def counted(policy: str, ended: Ended, seconds: float) -> Start:
    """Return what is kept of a job."""
    marks = ended.marks
    return Start(policy, ended.end, marks.stage, marks.iteration, marks.weights, seconds, ended.why)


@dataclass(frozen=True)
class Starts:
    """Data of the page: which job was started how often, and each end. `rate` is in bits per second."""

    build: str
    job: ManyGradientsJob
    rate: float
    limits: Limits
    starts: Sequence[Start]


def measure(
    out: Path,
    results: Path,
    *,
    build: str = "released",
    gradients: int = 3000,
    rate: str = "100mbit",
    starts: int = 5,
    still: float = 30.0,
    limit: float = 240.0,
) -> Starts:
    """Make the missing ones of so many `starts` of each policy, on workers' links of `rate`. Raises UserError.

    A start has stopped after `still` seconds without traffic, and is late after `limit` seconds.
    """
    reexec_in_user_namespace()
    cluster = ClusterConfig.model_validate({"workers": 2, "servers": 1, "bandwidth": rate})
    env = provide_build(build, out)
    job, limits = ManyGradientsJob(gradients, SIZE_BYTES, ITERATIONS), Limits(still, limit)
    file = out / f"starts-{build}-{gradients}-{rate}.jsonl"
    with testbed_of(cluster) as testbed:

        def start(number: int, name: str) -> Start:
            folder, port, began = out / f"{name}-{number}", FIRST_PORT + number % PORTS, time.monotonic()
            ended = run_job(testbed, cluster, unfused(name, env), job.command(), folder, port, limits)
            return counted(name, ended, time.monotonic() - began)

        wanted = enumerate(POLICIES * starts)
        works = [(name, partial(start, number, name)) for number, name in wanted]
        made = resumed(file, Start, works, lambda each: each.policy)
    return Starts(build, job, parse_rate(rate), limits, made)
