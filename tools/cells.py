"""A config that is run for a page: measured cell by cell, or simulated.

Rule of this file: running cells and finding those that an earlier run left; no words of a page. A cell whose results
are there is not run again: a machine that was not idle for a moment costs one cell, and a run can be interrupted.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console

from prophet.core.errors import UserError
from prophet.lab.config import Experiment, load_experiment
from prophet.lab.records import SCHEMA, Results, read_results
from prophet.lab.results import describe_setting, failures, summarize
from prophet.lab.session import progress_bar, run_session
from prophet.lab.simulated import prepare_experiment, simulate_experiment
from tools import kept
from tools.kept import Study


def measured(config: Path, out: Path, repeats: int | None, console: Console) -> Study:
    """What is kept of a config's results, once all of its cells are measured: those that are missing are run.

    Results go to `out`/cellN. Raises UserError where a cell could not be run, after the others were.
    """
    experiment = load_experiment(config, repeats=repeats)
    whole, refused = [], ""
    for number, cell in enumerate(experiment.cells):
        folder = out / f"cell{number}"
        found = earlier(experiment, folder)
        if found is None:
            try:
                run_session(replace(experiment, cells=(cell,)), folder)
            except UserError as error:
                refused = refused or str(error)
                console.print(f"{describe_setting(cell.setting)}: {error}", style="red", markup=False)
                continue
            found = read_results(folder / "results.json")
        whole += found.cells
    if refused:
        raise UserError(f"{refused}; run it again: only what is missing is measured")
    together = Results(
        schema=SCHEMA, config=to_jsonable_python(experiment.source), repeats=experiment.repeats, cells=whole
    )
    return kept.study_of(experiment, together)


def simulated(config: Path, console: Console) -> Study:
    """What is kept of a config's results on the simulator. Raises UserError."""
    experiment = load_experiment(config)
    planned = prepare_experiment(experiment)
    with tempfile.TemporaryDirectory() as folder, progress_bar(experiment, console, recordings=False) as listener:
        done = simulate_experiment(experiment, planned, Path(folder), listener)
    return kept.study_of(experiment, summarize(experiment, done))


def earlier(experiment: Experiment, folder: Path) -> Results | None:
    """What an earlier run left of a cell, where it was of this very config and nothing in it failed."""
    path = folder / "results.json"
    if not path.exists():
        return None
    results = read_results(path)
    same = results.config == to_jsonable_python(experiment.source) and results.repeats == experiment.repeats
    return results if same and not failures(results) else None
