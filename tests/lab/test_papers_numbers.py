"""Numbers of the papers' tables, to the last digit: each config of configs/papers/, simulated in a shorter run.

A run of `make papers` has more iterations, so the page's numbers are not these; what moves one moves the other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prophet_scheduler.lab.config import Cell, load_experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.simulated import prepare, run_planned
from support.golden import Golden, Json

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "papers").glob("*.yaml"))
MOST_ITERATIONS, MOST_WARMUP = 12, 5


def held(cell: Cell, policy: Contender) -> Json:
    """Iteration times after the warm-up and the rate that tables show, over all workers."""
    job, workers = cell.job, cell.cluster.workers
    short = {"iterations": min(job.iterations, MOST_ITERATIONS), "warmup": min(job.warmup, MOST_WARMUP)}
    run = run_planned(prepare(replace(cell, job=job.model_copy(update=short)), policy))
    low, middle, high = np.percentile(run.iteration_s(short["warmup"]), [10, 50, 90]).tolist()
    return {"p10_s": low, "median_s": middle, "p90_s": high, "samples_per_s": job.batch_size * workers / middle}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_no_digit_has_moved(config: Path, golden: Golden) -> None:
    cells: list[Json] = [
        {"setting": str(dict(cell.setting)), "policies": {policy.name: held(cell, policy) for policy in cell.policies}}
        for cell in load_experiment(config).cells
    ]
    golden.check(f"papers/{config.stem}", cells)
