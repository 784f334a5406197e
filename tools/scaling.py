"""Growth of the simulator's cost: elapsed time, events and memory by number of workers and gradients.

Rule of this file: measuring and drawing. Each size runs in its own process, to measure its memory separately. `make
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

from prophet_scheduler.core.optional import need_pyplot
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.simulate import Cluster, Costs, Options, job_of_profile, simulate
from prophet_scheduler.simulate.job import alone

FIGURE = "simulator-scaling.png"
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
    wall_s = time.perf_counter() - began
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    costs = {"wall_s": wall_s, "events": run.happenings, "peak_bytes": peak_bytes}
    return {"workers": workers, "gradients": gradients, **costs}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw elapsed time against n log n, on logarithmic axes; the goal is a straight line of slope 1."""
    pyplot = need_pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    work, wall_s = [row["events"] * math.log2(row["events"]) for row in rows], [row["wall_s"] for row in rows]
    axes.loglog(work, wall_s, "o", color="#2f6db3")
    for row, x in zip(rows, work, strict=True):
        label = f"{row['workers']} x {row['gradients']}"
        axes.annotate(label, (x, row["wall_s"]), xytext=(6, -10), textcoords="offset points", fontsize=8)
    per_unit = max(seconds / x for seconds, x in zip(wall_s, work, strict=True))
    axes.loglog(work, [per_unit * x for x in work], linestyle="--", color="gray", linewidth=1, label="n log n")
    axes.set(xlabel="n log2 n of n events", ylabel="wall time (s)", title="workers x gradients, one iteration")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def measure(out: Path, results: Path) -> list[dict[str, Any]]:
    """Measure all sizes, and draw the figure in `results`. Raises MissingPackage without matplotlib, and OSError."""
    need_pyplot()  # fail before five minutes are spent
    rows = []
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for row in pool.map(cost_of, *zip(*SIZES, strict=True)):
            rows.append(row)
            print(row, flush=True)
    draw(rows, results / FIGURE)
    return rows
