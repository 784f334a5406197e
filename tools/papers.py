"""The papers' tables, simulated: runs the configs of configs/papers/ and what is beside them, and keeps what came out.

Rule of this file: which runs there are. MLfabric, whose cluster is no config of the simulator, has its runs from
mlfabric_runs.py; what orders are worth is paper_orders.py's. `make papers` takes about two minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools import mlfabric_runs, paper_orders
from tools.kept import Study
from tools.paper_orders import Orders
from tools.studies import simulated

CONFIGS = Path("configs/papers")


@dataclass(frozen=True)
class PapersData:
    """Data of the page: the studies by config, TicTac's orders, and MLfabric's runs."""

    studies: Mapping[str, Study]
    orders: Orders
    mlfabric: dict[str, Any]


def measure(out: Path, results: Path) -> PapersData:
    """Simulate all; MLfabric's figure goes into `results`. Raises UserError and MissingPackage."""
    studies = {path.name: simulated(path) for path in sorted(CONFIGS.glob("*.yaml"))}
    return PapersData(studies, paper_orders.measure(), mlfabric_runs.measure(results))
