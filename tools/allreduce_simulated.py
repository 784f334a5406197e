"""Cells of an all-reduce run, simulated; `tools.validate` compares them with the real ones.

Rule of this file: from what is kept to simulated cells. prophet_scheduler/lab/simulated_ddp.py simulates a contender.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Cell, experiment_of
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results import as_measured, summarize_cell
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.simulated import run_of, run_planned
from prophet_scheduler.lab.simulated_ddp import prepared
from tools.kept import Study, small


def cells_of(study: Study) -> Sequence[Cell]:
    """Return the cells of the config that was run. Raises UserError if it is none any more."""
    cells = experiment_of(study.config, Path("kept.yaml")).cells
    if len(cells) != len(study.points):
        raise UserError(f"{len(study.points)} cells are kept of a config that has {len(cells)}; measure it again")
    return cells


def simulated_study(study: Study) -> Study:
    """Return `study` with each possible cell simulated. Raises UserError if its config is none any more."""
    points = [
        replace(point, simulated=simulated_cell(cell, point.cell))
        for cell, point in zip(cells_of(study), study.points, strict=True)
    ]
    return replace(study, points=points)


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
    return small(summarize_cell(CellRuns(replace(cell, policies=chosen), {}, runs, simulated=True))) if runs else None
