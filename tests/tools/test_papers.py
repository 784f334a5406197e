"""The papers' tables, simulated, held to the last digit: each study of tools/papers.py in a shorter run.

A run of `make papers` has more iterations, so the page's numbers are not these; what moves one moves the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prophet.lab.config import Experiment, load_experiment
from support.fakes import FakeListener
from support.golden import Golden, Json
from tools import papers

CONFIGS = Path(__file__).parents[2] / "configs" / "papers"
MOST_ITERATIONS, MOST_WARMUP = 12, 5
HELD = ("iteration_s", "samples_per_s", "wait_s", "processor_utilisation")


def shortened(experiment: Experiment) -> Experiment:
    """The experiment with fewer iterations, so that all tables together take some seconds."""
    cells = []
    for cell in experiment.cells:
        short = {
            "iterations": min(cell.job.iterations, MOST_ITERATIONS),
            "warmup": min(cell.job.warmup, MOST_WARMUP),
        }
        cells.append(dataclasses.replace(cell, job=cell.job.model_copy(update=short)))
    return dataclasses.replace(experiment, cells=tuple(cells))


def held(cell: Mapping[str, Any]) -> Json:
    """What of a cell of results.json is one number a policy."""
    return {
        "setting": cell["setting"],
        "narrow_link": cell["narrow_link"],
        "lower_bound_s": cell["lower_bound_s"],
        "policies": {name: {key: policy[key] for key in HELD} for name, policy in cell["policies"].items()},
    }


@pytest.mark.parametrize("study", papers.STUDIES, ids=lambda study: study.config.removesuffix(".yaml"))
def test_no_number_has_moved(study: papers.Study, golden: Golden) -> None:
    experiment = shortened(load_experiment(CONFIGS / study.config))
    cells = papers.simulated_cells(experiment, FakeListener())
    workers = [cell.cluster.workers for cell in experiment.cells]
    golden.check(
        f"papers/{experiment.name}",
        {
            "columns": list(study.columns),
            "rows": [" | ".join(row) for row in study.rows(cells, workers)],
            "cells": [held(cell) for cell in cells],
        },
    )
