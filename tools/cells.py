"""A config that is run for a page: measured cell by cell, or simulated.

Rule of this file: running cells, finding those that an earlier run left, and the command of a page that is made of
nothing else; no words of a page. A cell whose results are there is not run again: a machine that was not idle for a
moment costs one cell, and a run can be interrupted.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python
from rich.console import Console

from prophet.core.errors import UserError
from prophet.lab.config import Experiment, load_experiment
from prophet.lab.records import SCHEMA, Results, read_results
from prophet.lab.results import failures, summarize
from prophet.lab.results_view import describe_setting
from prophet.lab.session import progress_bar, run_session
from prophet.lab.simulated import prepare_experiment, simulate_experiment
from tools import kept
from tools.exit_status import exit_status
from tools.kept import Study
from tools.provenance import here


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


def write_study_page(
    name: str,
    file: str,
    page: Callable[[Path], str],
    config: Path,
    out: Path,
    results: Path,
    repeats: int | None,
) -> int:
    """Runs what is missing of the config, keeps what came out as `name` and writes the page to `file`; an exit status.

    Raises UserError and OSError.
    """
    console = Console()
    kept.keep(results, name, Study, measured(config, out, repeats, console), here())
    (results / file).write_text(page(results), encoding="utf-8")
    console.print(f"written to {results / file}")
    return 0


def study_main(
    name: str,
    about: str | None,
    config: Path,
    write_page: Callable[[Path, Path, Path, int | None], int],
    arguments: Sequence[str] | None,
) -> int:
    """The command `tools.NAME`, which calls `write_page(config, out, results, repeats)`.

    Exit status 2 with one line for an error of the user's.
    """
    parser = argparse.ArgumentParser(prog=f"python -m tools.{name}", description=about)
    parser.add_argument("--config", type=Path, default=config)
    parser.add_argument("--out", type=Path, default=Path("build", config.stem), help="folder for the runs")
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the pages and their data")
    parser.add_argument("--repeats", type=int, help="in place of the config's")
    options = parser.parse_args(arguments)
    return exit_status(lambda: write_page(options.config, options.out, options.results, options.repeats))
