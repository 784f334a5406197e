"""Compares the simulator with real runs: the cells of configs/replay-bandwidths.yaml, and of all-reduce runs.

Rule of this file: running both ways, and the verdict; what is within bounds is said, not enforced by tuning. `make
validate` runs it, for about an hour. With --allreduce it simulates the cells of the studies of all-reduces that are
kept, in seconds, and measures nothing. `python -m tools.validate --errors` writes how far off the simulator was, for
`prophet advise`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import write_whole
from prophet_scheduler.lab.config import Cell, experiment_of
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results import as_measured, summarize_cell
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.simulated import run_of, run_planned
from prophet_scheduler.lab.simulated_ddp import prepared
from prophet_scheduler.lab.simulator_error import FILE
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.figures import Compared, compared
from tools.kept import Study
from tools.studies import StudyRecipe, study

CONFIG = Path("configs/replay-bandwidths.yaml")
NAME = "validation"
ALL_REDUCES = ("allreduce", "eighth")
"""Studies of real all-reduces: all policies are in the second, of which the first has most in few cells."""
WORST = 0.20
"""Largest error of all cells; nine in ten are to be near."""
SHARE = 0.9


def is_good(cells: Sequence[Compared]) -> bool:
    """True if the cells are within the bounds; nothing compared is nothing shown."""
    near = sum(cell.near for cell in cells)
    return bool(cells) and near >= SHARE * len(cells) and max(abs(cell.error) for cell in cells) <= WORST


def cells_of(study: Study) -> Sequence[Cell]:
    """Return the cells of the config that was run. Raises UserError if it is none any more."""
    cells = experiment_of(study.config, Path("kept.yaml")).cells
    if len(cells) != len(study.points):
        raise UserError(f"{len(study.points)} cells are kept of a config that has {len(cells)}; measure it again")
    return cells


def simulated_cell(cell: Cell, measured: CellResult) -> CellResult | None:
    """Simulate the contenders of `cell` that the simulator knows, at the `measured` rates of links without a limit.

    None if it knows none of them.
    """
    if cell.profile is None:
        return None
    cell = as_measured(cell, measured.links)
    runs = {}
    for contender in cell.policies:
        planned = prepared(cell.of(contender), contender, replayed=True)
        if planned is not None:
            runs[contender.name] = [run_of(run_planned(planned), Path())]
    chosen = tuple(contender for contender in cell.policies if contender.name in runs)
    return (
        kept.small(summarize_cell(CellRuns(replace(cell, policies=chosen), {}, runs, simulated=True))) if runs else None
    )


def validate(config: Path, out: Path, repeats: int | None, results: Path) -> list[Compared]:
    """Run the config both ways and keep it. Raises UserError and OSError."""
    data = study(StudyRecipe(config.name, beside=True), config, out, results, repeats)
    kept.keep(results, NAME, Study, data, replaces=("replay-bandwidths",))
    return compared(data.points)


def validate_all_reduces(results: Path) -> list[Compared]:
    """Simulate the kept cells of ALL_REDUCES, and keep the results with them. Raises UserError."""
    cells: list[Compared] = []
    for name in ALL_REDUCES:
        stored = kept.kept(results, name, Study)
        if stored is not None:
            measured, data = stored
            both = zip(cells_of(data), data.points, strict=True)
            points = [replace(point, simulated=simulated_cell(cell, point.cell)) for cell, point in both]
            kept.keep(results, name, Study, replace(data, points=points), measured)
            cells += compared(points)
    if not cells:
        raise UserError(f"{kept.data_file(results, ALL_REDUCES[0])} is missing; measure first: make {ALL_REDUCES[0]}")
    return cells


def errors_text(results: Path) -> str:
    """Return the file from which `prophet advise` takes the simulator's errors, from what is kept. Raises UserError."""
    ratios: dict[str, list[float]] = {}
    for name in (NAME, *ALL_REDUCES):
        stored = kept.kept(results, name, Study)
        if stored is None:
            continue
        for cell, point in zip(cells_of(stored[1]), stored[1].points, strict=True):
            times = point.real_and_simulated_s
            for contender in cell.policies:
                if contender.name in times:
                    real_s, simulated_s = times[contender.name]
                    ratios.setdefault(contender.base, []).append(round(real_s / simulated_s, 4))
    lines = [f"  {json.dumps(base)}: {json.dumps(ratios[base])}" for base in sorted(ratios)]
    return '{\n "schema": 1,\n "ratios": {\n' + ",\n".join(lines) + "\n }\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 0 if the simulator is within the bounds, 1 if it is not, 2 for an error of the user's."""
    parser = page_parser("validate", __doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=Path("build/validation"), help="folder for the runs")
    parser.add_argument("--repeats", type=int, help="of the real runs, in place of the config's")
    parser.add_argument("--allreduce", action="store_true", help="simulate all-reduces that are kept, alone")
    parser.add_argument("--errors", type=Path, nargs="?", const=FILE, help="write the simulator's errors, alone")
    options = parser.parse_args(arguments)

    def work() -> int:
        if options.errors:
            write_whole(errors_text(options.results), options.errors)
            return 0
        if options.allreduce:
            cells = validate_all_reduces(options.results)
        else:
            cells = validate(options.config, options.out, options.repeats, options.results)
        shown = Table("setting", "policy", "real s", "simulated s", "error")
        for cell in cells:
            shown.add_row(
                cell.setting, cell.policy, f"{cell.real_s:.3f}", f"{cell.simulated_s:.3f}", f"{cell.error:+.1%}"
            )
        Console().print(shown)
        return 0 if is_good(cells) else 1

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
