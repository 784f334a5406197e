"""Growth of the simulator's cost: elapsed time, events and memory by number of workers and gradients.

Rule of this file: measuring. Each size runs in its own process, to measure its memory separately. `make
scaling` runs it; it takes about five minutes.
"""

from __future__ import annotations

import math
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.simulate import Cluster, Costs, Options, job_of_profile, simulate
from prophet_scheduler.simulate.job import alone

RATE = 125e6
"""Bytes per second of each worker's link."""
SIZES = ((1, 1000), (10, 1000), (100, 1000), (1000, 1000), (100, 10_000), (300, 10_000), (1000, 10_000))
"""Workers and gradients of each measurement, which is of one iteration."""


def profile(gradients: int) -> Profile:
    """Return a profile of `gradients` of 100 kB, in steps of ten. Computing takes about as long as the transfers."""
    step_s, forward_s = 10 * 100_000 / RATE, 100_000 / RATE / 2
    ends_s = [step_s * math.ceil((gradients - i) / 10) for i in range(gradients)]
    return Profile("even", tuple(GradientProfile(f"g{i}", 100_000, ends_s[i], forward_s) for i in range(gradients)))


def cost_of(workers: int, gradients: int) -> dict[str, Any]:
    """Measure one iteration and the transfers before the next: seconds, events, and this process's peak memory."""
    job_profile = profile(gradients)
    began = time.perf_counter()
    job = job_of_profile(job_profile, alone(job_profile))
    links = {f"worker{index}": ((0.0, RATE),) for index in range(workers)}
    cluster = Cluster(workers, max(1, workers // 10), links, Costs(1e-5, 1e-5))
    # The second iteration's forward pass needs every transfer of the first.
    run = simulate(job, cluster, get_policy("prophet"), Options(iterations=2))
    costs = {"wall_s": time.perf_counter() - began, "events": run.happenings}
    costs["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"workers": workers, "gradients": gradients, **costs}


def measure(out: Path, results: Path) -> list[dict[str, Any]]:
    rows = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(cost_of, *zip(*SIZES, strict=True)):
            rows.append(row)
            print(row, flush=True)
    return rows
