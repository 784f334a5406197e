"""MLfabric's nine cells: on real transfers, and the same cells simulated; the configs of configs/mlfabric.

Rule of this file: what is run; what is simulated is mlfabric_simulated.py's. `make mlfabric` runs both, for about half
an hour on a quiet machine; what an earlier run left is not run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import load_experiment
from tools import kept
from tools.kept import Study
from tools.mlfabric_simulated import MlfabricSimulated, paper_cell
from tools.mlfabric_simulated import simulate as simulated
from tools.studies import measured

CONFIGS = Path("configs/mlfabric")
CELLS = tuple(f"{compute}-{network}" for compute in ("c1", "c2", "c3") for network in ("n1", "n2", "n3"))
EVERY = "all"


@dataclass(frozen=True)
class RealCells:
    """Studies that are kept, by the name of a cell such as `c1-n1`."""

    cells: Mapping[str, Study]


def chosen(cells: str) -> Sequence[str]:
    """Return the names of cells such as `c1-n1,c1-n2`, or of all. Raises UserError."""
    names = CELLS if cells == EVERY else tuple(cells.split(","))
    if unknown := set(names) - set(CELLS):
        raise UserError(f"{min(unknown)} is no cell; they are {', '.join(CELLS)}")
    return names


def measure(out: Path, results: Path, *, cells: str = EVERY) -> RealCells:
    """Run what is missing of these cells, beside what is kept of the others. Raises UserError."""
    stored, names = kept.kept(results, "mlfabric", RealCells), chosen(cells)
    studies = {} if stored is None else dict(stored[1].cells)
    studies |= {name: measured(CONFIGS / f"{name}.yaml", out / name, None, Console()) for name in names}
    return RealCells({name: studies[name] for name in sorted(studies)})


def simulate(out: Path, results: Path, *, cells: str = EVERY) -> MlfabricSimulated:
    """Simulate these cells, and the paper's, beside what is kept of the others. Raises UserError."""
    stored, names = kept.kept(results, "mlfabric-simulated", MlfabricSimulated), chosen(cells)
    here, paper = ({}, {}) if stored is None else (dict(stored[1].cells), dict(stored[1].paper))
    for name in names:
        here[name] = simulated(load_experiment(CONFIGS / f"{name}.yaml").cells[0])
        compute, network = name.upper().split("-")
        paper[name] = paper_cell(compute, network)
    return MlfabricSimulated({name: here[name] for name in sorted(here)}, {name: paper[name] for name in sorted(paper)})
