"""Simulated iterations to the last digit: one cell each of what the simulator knows, held by golden files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prophet_scheduler.lab.simulated import prepare, run_planned
from support.configs import REPLAY, changed, loaded
from support.golden import Golden

SCHEDULED = ["fifo", "p3", "bytescheduler", "prophet"]
FUSED = ["mg-wfbp", "ddp", "horovod", "tictac", "pace", "caramel"]
# None has jitter: that goes through NumPy's exp(), whose last digit depends on the processor.
CELLS: Mapping[str, Mapping[str, Any]] = {
    "parameter-server": {"policies": ["stock", "stock-credit", *SCHEDULED, *FUSED]},
    "changing-network": {
        "job.iterations": 30,
        "cluster.bandwidth": [{"at_s": 0, "rate": "250mbit"}, {"at_s": 4, "rate": "100mbit"}],
        "job.stragglers": {"worker1": 1.2},
        "policies": ["stock", *SCHEDULED],
    },
    "servers-and-traffic": {
        "cluster": {
            "workers": 4,
            "servers": 2,
            "bandwidth": {"default": "400mbit", "worker3": "200mbit"},
            "traffic": [{"node": "worker0", "from_s": 2.0, "until_s": 4.0, "rate": "100mbit"}],
        },
        "simulator": {"burst": 0, "sum_rate": "4gbit"},
        "policies": ["stock", "prophet"],
    },
    "asynchronous": {"simulator": {"exchange": "asynchronous"}, "policies": ["stock", "prophet"]},
    "ring": {"simulator": {"exchange": "ring"}, "policies": [*SCHEDULED, *FUSED]},
    "halving-doubling": {"simulator": {"exchange": "halving-doubling"}, "policies": ["fifo", "pace"]},
}


@pytest.mark.parametrize("name", CELLS)
def test_no_digit_has_moved(name: str, tmp_path: Path, golden: Golden) -> None:
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
