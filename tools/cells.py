"""A config that is run for a page: measured cell by cell, or simulated.

Rule of this file: running cells, finding those that an earlier run left, and the command of a page made of nothing
else; no text of a page. A cell with results is not run again. So a machine that was not idle for a moment costs one
cell, and a run can be interrupted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Experiment, load_experiment
from prophet_scheduler.lab.records import RESULTS_FILE, SCHEMA, Results, read_results
from prophet_scheduler.lab.results import failures, summarize
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.runs import CellRuns
from prophet_scheduler.lab.session import progress_bar, run_session
from prophet_scheduler.lab.simulated import prepare_experiment, simulate_experiment
from tools import kept
from tools.command_line import exit_status, page_parser
from tools.kept import Study


def measured(config: Path, out: Path, repeats: int | None, console: Console) -> Study:
    """Return what is kept of a config's results, once all of its cells are measured. Runs the missing ones.

    Results go to `out`/cellN. Raises UserError if a cell could not be run, after the others were.
    """
    experiment = load_experiment(config, repeats=repeats)
    whole, refused = [], ""
    for number, cell in enumerate(experiment.cells):
        folder = out / f"cell{number}"
        results = earlier(experiment, folder)
        if results is None:
            try:
                run_session(replace(experiment, cells=(cell,)), folder)
            except UserError as error:
                refused = refused or str(error)
                console.print(f"{describe_setting(cell.setting)}: {error}", style="red", markup=False)
                continue
            results = read_results(folder / RESULTS_FILE)
        whole += results.cells
    if refused:
        raise UserError(f"{refused}; run it again: only what is missing is measured")
    together = Results(
        schema=SCHEMA, config=to_jsonable_python(experiment.source), repeats=experiment.repeats, cells=whole
    )
    return kept.study_of(experiment, together)


def simulated(config: Path, console: Console) -> Study:
    """Return what is kept of a config's results on the simulator. Raises UserError."""
    experiment = load_experiment(config)
    return kept.study_of(experiment, summarize(experiment, simulated_runs(experiment, console)))


def simulated_runs(experiment: Experiment, console: Console) -> list[CellRuns]:
    """Return all runs of an experiment on the simulator, with a progress bar. Raises UserError."""
    planned = prepare_experiment(experiment)
    with tempfile.TemporaryDirectory() as folder, progress_bar(experiment, console, recordings=False) as listener:
        return simulate_experiment(experiment, planned, Path(folder), listener)


def earlier(experiment: Experiment, folder: Path) -> Results | None:
    """Return what an earlier run left of a cell, if it was of this very config and nothing in it failed."""
    path = folder / RESULTS_FILE
    if not path.exists():
        return None
    results = read_results(path)
    same = results.config == to_jsonable_python(experiment.source) and results.repeats == experiment.repeats
    return results if same and not failures(results) else None


def page_writer(name: str, file: str, page: Callable[[Path], str]) -> Callable[[Path, Path, Path, int | None], int]:
    """Return the writer for `study_main` of a page `file`, made only of a config's results kept as `name`."""

    def write_page(config: Path, out: Path, results: Path, repeats: int | None) -> int:
        """Run what is missing of the config, keep the results and write the page. Raises UserError and OSError."""
        study = measured(config, out, repeats, Console())
        former = kept.kept(results, name, Study)
        if former is not None:
            study = kept.still_simulated(study, former[1])
        kept.publish(results, name, Study, study, file, page)
        return 0

    return write_page


def study_main(
    name: str,
    about: str | None,
    config: Path,
    write_page: Callable[[Path, Path, Path, int | None], int],
    arguments: Sequence[str] | None,
) -> int:
    """Run the command `tools.NAME`, which calls `write_page(config, out, results, repeats)`.

    Exit status 2 with one line for an error of the user's.
    """
    parser = page_parser(name, about)
    parser.add_argument("--config", type=Path, default=config)
    parser.add_argument("--out", type=Path, default=Path("build", config.stem), help="folder for the runs")
    parser.add_argument("--repeats", type=int, help="in place of the config's")
    options = parser.parse_args(arguments)
    return exit_status(lambda: write_page(options.config, options.out, options.results, options.repeats))
