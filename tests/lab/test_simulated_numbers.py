"""Simulated iterations to the last digit, held by golden files: one cell each of what the simulator knows, and every
third cell of each config of configs/papers/ in a shorter run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prophet_scheduler.lab.config import Cell, load_experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.simulated import prepare, run_planned
from support.configs import REPLAY, changed, loaded
from support.golden import Golden, Json

SCHEDULED = ["fifo", "p3", "bytescheduler", "prophet"]
FUSED = ["mg-wfbp", "ddp", "horovod", "tictac", "pace", "caramel"]
# None has jitter: that goes through NumPy's exp(), whose last digit depends on the processor.
CELLS: Mapping[str, Mapping[str, Any]] = {
    "parameter-server": {"policies": ["stock", "stock-credit", *SCHEDULED, *FUSED]},
    "changing-network": {
        "job.iterations": 30,
        "cluster.bandwidth": [{"at_s": 0, "rate": "250mbit"}, {"at_s": 4, "rate": "100mbit"}],
        "policies": ["stock", *SCHEDULED],
    },
    "servers-and-traffic": {
        "cluster": {
            "workers": 4,
            "servers": 2,
            "bandwidth": {"default": "400mbit", "worker3": "200mbit"},
            "traffic": [{"node": "worker0", "from_s": 2.0, "until_s": 4.0, "rate": "100mbit"}],
        },
        "simulator": {"burst": 0},
        "policies": ["stock", "prophet"],
    },
    "asynchronous": {"simulator": {"exchange": "asynchronous"}, "policies": ["stock", "prophet"]},
    "ring": {"simulator": {"exchange": "ring"}, "policies": [*SCHEDULED, *FUSED]},
    "halving-doubling": {"simulator": {"exchange": "halving-doubling"}, "policies": ["fifo", "pace"]},
}


@pytest.mark.parametrize("name", CELLS)
def test_golden_iterations(name: str, tmp_path: Path, golden: Golden) -> None:
    raw = changed({**REPLAY, "repeats": 1, "simulator": {}}, "job.iterations", 12)
    for key, value in CELLS[name].items():
        raw = changed(raw, key, value)
    (cell,) = loaded(raw, tmp_path).cells
    runs = {policy.name: run_planned(prepare(cell, policy)) for policy in cell.policies}
    golden.check(
        f"cells/{name}",
        {
            policy: {
                "plans": run.plans,
                "watchdog_releases": run.watchdog_releases,
                "iteration_s": [
                    ", ".join(map(repr, times.tolist())) for times in run.iteration_s().reshape(len(run.marks), -1)
                ],
            }
            for policy, run in runs.items()
        },
    )


CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "papers").glob("*.yaml"))
MOST_ITERATIONS, MOST_WARMUP = 12, 5
"""A run of `make papers` has more, so the page's numbers are not these; what moves one moves the other."""


def held(cell: Cell, policy: Contender) -> Json:
    """Iteration times after the warm-up and the rate that tables show, over all workers."""
    job, workers = cell.job, cell.cluster.workers
    short = {"iterations": min(job.iterations, MOST_ITERATIONS), "warmup": min(job.warmup, MOST_WARMUP)}
    run = run_planned(prepare(replace(cell, job=job.model_copy(update=short)), policy))
    low, middle, high = np.percentile(run.iteration_s(short["warmup"]), [10, 50, 90]).tolist()
    return {"p10_s": low, "median_s": middle, "p90_s": high, "samples_per_s": job.batch_size * workers / middle}


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_golden_iterations_of_papers(config: Path, golden: Golden) -> None:
    cells: list[Json] = [
        {"setting": str(dict(cell.setting)), "policies": {policy.name: held(cell, policy) for policy in cell.policies}}
        for cell in load_experiment(config).cells[::3]
    ]
    golden.check(f"papers/{config.stem}", cells)
