"""Configs that are run for pages: on real engines, cell by cell, or on the simulator.

Rule of this file: the list of configs, and running a config's missing cells. A cell with results is not run again, so a
disturbed measurement costs one cell, and a run can be interrupted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Cell, Experiment, load_experiment
from prophet_scheduler.lab.records import RESULTS_FILE, CellResult, read_results
from prophet_scheduler.lab.results import as_measured, failures, summarize, summarize_cell
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.session import progress_bar, run_session
from prophet_scheduler.lab.simulated import prepare_experiment, prepared, run_of, run_planned, simulate_experiment
from prophet_scheduler.simulate.run import SimulatedRun
from tools import kept
from tools.kept import Study

CONFIGS = Path("configs")
VALIDATION = "validation"
BESIDE = (VALIDATION, "allreduce", "eighth")
"""Studies whose real cells are also simulated."""


STUDIES: Mapping[str, str] = {
    "allreduce": "allreduce.yaml",
    "eighth": "eighth.yaml",
    "blocks": "blocks.yaml",
    "blocks-simulated": "blocks-simulated.yaml",
    "ablation": "ablation.yaml",
    "ablation-simulated": "ablation-simulated.yaml",
    "replay-resnet50": "replay-resnet50.yaml",
    VALIDATION: "replay-bandwidths.yaml",
}
"""Config of each study, by name of its kept data. Only the simulator runs those named `*-simulated`."""


def measured(config: Path, out: Path) -> Study:
    """Run a config's missing cells, and return the data to keep of all.

    Results go to `out`/cellN. Raises UserError if a cell cannot be run, after running the others.
    """
    experiment = load_experiment(config)
    whole, refused = [], ""
    for number, cell in enumerate(experiment.cells):
        folder = out / f"cell{number}"
        try:
            if not measured_before(experiment, folder):
                run_session(replace(experiment, cells=(cell,)), folder)
            whole += read_results(folder / RESULTS_FILE).cells
        except UserError as error:
            refused = refused or str(error)
            Console(stderr=True).print(f"{describe_setting(cell.setting)}: {error}", style="red", markup=False)
    if refused:
        raise UserError(f"{refused}; run it again: only what is missing is measured")
    return kept.study_of(experiment, whole)


def measured_before(experiment: Experiment, folder: Path) -> bool:
    """Return True if the folder has results of a cell of the same config, and nothing failed."""
    path = folder / RESULTS_FILE
    if not path.exists():
        return False
    results = read_results(path)
    same = results.config == to_jsonable_python(experiment.source) and results.repeats == experiment.repeats
    return same and not failures(results)


def simulated(config: Path) -> Study:
    """Run a config on the simulator, and return the data to keep. Raises UserError."""
    experiment = load_experiment(config)
    return kept.study_of(experiment, summarize(experiment, simulated_runs(experiment)).cells)


def simulated_runs(experiment: Experiment) -> list[CellRuns]:
    """Run an experiment on the simulator, with a progress bar. Raises UserError."""
    planned, console = prepare_experiment(experiment), Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, progress_bar(experiment, console) as listener:
        return simulate_experiment(experiment, planned, Path(folder), listener)


def contenders_simulated(cell: Cell, *, replayed: bool = False) -> dict[str, SimulatedRun]:
    """Simulate the contenders of `cell` that the simulator supports, by name."""
    return {
        each.name: run_planned(planned)
        for each in cell.policies
        if (planned := prepared(cell.of(each), each, replayed=replayed)) is not None
    }


def simulated_cell(cell: Cell, measured: CellResult) -> CellResult | None:
    """Simulate the contenders of `cell` that the simulator supports, with `measured` rates for links without a limit.

    Return None if it supports none of them.
    """
    if cell.profile is None:
        return None
    cell = as_measured(cell, measured.links)
    runs = {name: [run_of(run, Path())] for name, run in contenders_simulated(cell, replayed=True).items()}
    chosen = tuple(each for each in cell.policies if each.name in runs)
    done = CellRuns(replace(cell, policies=chosen), {}, runs, simulated=True)
    return kept.small(summarize_cell(done)) if runs else None


def beside(study: Study) -> Study:
    """Return the study with its cells simulated anew. Raises UserError."""
    pairs = study.configured()
    return replace(study, points=[replace(point, simulated=simulated_cell(cell, point.cell)) for cell, point in pairs])


def study(name: str, config: Path, out: Path) -> Study:
    """Run the missing parts of a study and return it. Raises UserError and OSError."""
    if name.endswith("-simulated"):
        return simulated(config)
    data = measured(config, out)
    return beside(data) if name in BESIDE else data


def measurement(name: str) -> Callable[[Path, Path], Study]:
    """Return the function of a study, as tools/measure.py calls it."""

    def measure(out: Path, results: Path) -> Study:
        return study(name, CONFIGS / STUDIES[name], out)

    return measure


def simulate_again(out: Path, results: Path, *, names: str = ",".join(BESIDE)) -> None:
    """Simulate kept real cells again, which takes seconds, and keep both. Raises UserError."""
    for name in names.split(","):
        stored = kept.kept(results, name, Study)
        if stored is None:
            raise UserError(f"{kept.data_file(results, name)} is missing; run first: make {name}")
        kept.keep(results, name, Study, beside(stored.data), stored.measured)
