"""MLfabric's nine cells: on real transfers, and the same cells simulated; the configs of configs/mlfabric.

Rule of this file: what is run and kept; what is simulated is mlfabric_simulated.py's. `make mlfabric` runs it, for
about half an hour on a quiet machine; what an earlier run left is not run again. With --simulated nothing real is run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.lab.config import load_experiment
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.mlfabric_simulated import MlfabricSimulated, paper_cell, simulate
from tools.studies import measured

CONFIGS = Path("configs/mlfabric")
NAME, SIMULATED_NAME = "mlfabric", "mlfabric-simulated"
CELLS = tuple(f"{compute}-{network}" for compute in ("c1", "c2", "c3") for network in ("n1", "n2", "n3"))


@dataclass(frozen=True)
class RealCells:
    """Studies that are kept, by the name of a cell such as `c1-n1`."""

    cells: Mapping[str, Study]


def keep_simulated(names: Sequence[str], configs: Path, results: Path) -> None:
    """Simulate these cells, and add them to what is kept. Raises UserError and OSError."""
    stored = kept.kept(results, SIMULATED_NAME, MlfabricSimulated)
    cells, paper = ({}, {}) if stored is None else (dict(stored[1].cells), dict(stored[1].paper))
    for name in names:
        cells[name] = simulate(load_experiment(configs / f"{name}.yaml").cells[0])
        compute, _, network = name.upper().partition("-")
        paper[name] = paper_cell(compute, network)
    order = sorted(cells)
    together = MlfabricSimulated({name: cells[name] for name in order}, {name: paper[name] for name in order})
    kept.keep(results, SIMULATED_NAME, MlfabricSimulated, together)


def keep_measured(names: Sequence[str], configs: Path, out: Path, results: Path, repeats: int | None) -> None:
    """Run what is missing of these cells, and add the results to what is kept. Raises UserError and OSError."""
    console = Console()
    stored = kept.kept(results, NAME, RealCells)
    cells = {} if stored is None else dict(stored[1].cells)
    for name in names:
        cells[name] = measured(configs / f"{name}.yaml", out / name, repeats, console)
        kept.keep(results, NAME, RealCells, RealCells({n: cells[n] for n in sorted(cells)}))


def main(arguments: list[str] | None = None) -> int:
    """Run and keep; exit status 2 with one line for an error of the user's."""
    parser = page_parser("mlfabric_real", __doc__)
    parser.add_argument("cells", nargs="*", choices=[[], *CELLS], help="such as c1-n1; all nine where none is named")
    parser.add_argument("--simulated", action="store_true", help="what is simulated alone: about two minutes")
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--out", type=Path, default=Path("build", NAME), help="folder for the runs")
    parser.add_argument("--repeats", type=int, help="in place of the configs'")
    options = parser.parse_args(arguments)
    names = options.cells or CELLS

    def work() -> int:
        keep_simulated(names, options.configs, options.results)
        if not options.simulated:
            keep_measured(names, options.configs, options.out, options.results, options.repeats)
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
