"""Configs that are run for pages: on real engines, cell by cell, or on the simulator.

Rule of this file: the list of configs, running a config's missing cells, and keeping the results. A cell with results
is not run again, so a disturbed measurement costs one cell, and a run can be interrupted. With `--simulated` it only
simulates kept cells again, which takes seconds.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console

from prophet_scheduler.cli.options import exit_status
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
ALL_REDUCES = ("allreduce", "eighth")
"""Studies of real all-reduces."""


@dataclass(frozen=True)
class StudyRecipe:
    """Recipe of a study: its config, if only the simulator runs it, and if its real cells are also simulated."""

    config: str
    simulated: bool = False
    beside: bool = False


STUDIES: Mapping[str, StudyRecipe] = {
    "allreduce": StudyRecipe("allreduce.yaml", beside=True),
    "eighth": StudyRecipe("eighth.yaml", beside=True),
    "blocks": StudyRecipe("blocks.yaml"),
    "blocks-simulated": StudyRecipe("blocks-simulated.yaml", simulated=True),
    "ablation": StudyRecipe("ablation.yaml"),
    "ablation-simulated": StudyRecipe("ablation-simulated.yaml", simulated=True),
    "replay-resnet50": StudyRecipe("replay-resnet50.yaml"),
    VALIDATION: StudyRecipe("replay-bandwidths.yaml", beside=True),
}
"""Studies by name of their kept data."""


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


def study(recipe: StudyRecipe, out: Path) -> Study:
    """Run the missing parts of a study and return it. Raises UserError and OSError."""
    config = CONFIGS / recipe.config
    data = simulated(config) if recipe.simulated else measured(config, out)
    return beside(data) if recipe.beside else data


def main(arguments: list[str] | None = None) -> int:
    """Run and keep. A user's error is one line and exit status 2."""
    parser = kept.page_parser("studies", __doc__)
    parser.add_argument("names", nargs="+", choices=STUDIES, metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--out", type=Path, default=Path("build/studies"), help="folder for the runs")
    parser.add_argument("--simulated", action="store_true", help="only simulate the kept cells again")
    options = parser.parse_args(arguments)

    def work() -> int:
        for name in options.names:
            if not options.simulated:
                kept.keep(options.results, name, Study, study(STUDIES[name], options.out / name))
            elif (stored := kept.kept(options.results, name, Study)) is not None:
                kept.keep(options.results, name, Study, beside(stored.data), stored.measured)
            else:
                raise UserError(f"{kept.data_file(options.results, name)} is missing; measure first: make {name}")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
