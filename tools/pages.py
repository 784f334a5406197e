"""Pages of results: the templates of docs/results/templates, filled with kept data. Nothing is measured.

Rule of this file: the list of pages, and the names a template may use. A template has the prose of its page, and its
tables row by row; figures.py computes numbers that are not in the data. `make pages` writes all pages.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from prophet_mlfabric.studies import tables as papers_tables
from prophet_mlfabric.studies.settings import Setting
from prophet_scheduler.cli.options import exit_status
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.lab import iterations
from prophet_scheduler.lab.cluster_config import SimulatorConfig
from prophet_scheduler.lab.results_view import basis_of, describe_setting
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE
from tools import baselines, changing, figures, gain_map, kept, observed, public_traces
from tools.baselines import Trained
from tools.changing import Series
from tools.gain_map import Curve
from tools.kept import Study
from tools.mlfabric_cells import MlfabricSimulated, RealCells
from tools.observed import WatchedRun
from tools.papers import PapersData
from tools.regret import Regrets
from tools.soak import SoakData

TEMPLATES = Path(__file__).parents[1] / "docs" / "results" / "templates"
PLACES: Mapping[str, str] = {"reliability.md": "../reliability.md", "report.md": "../report.md"}
"""Pages outside the folder of results, and their paths."""
KINDS: Mapping[str, Any] = {
    "baselines": list[list[Trained]],
    "changing": list[list[Series]],
    "map": list[Curve],
    "mlfabric": RealCells,
    "mlfabric-simulated": MlfabricSimulated,
    "observed": list[WatchedRun],
    "papers": PapersData,
    "regret": Regrets,
    "soak": SoakData,
}
"""Types of kept data, by name, if a template needs more than the raw values in the file."""


def names() -> list[str]:
    """Return the pages' files, relative to the folder of results."""
    files = sorted(path.name.removesuffix(".j2") for path in TEMPLATES.glob("*.md.j2"))
    return [PLACES.get(file, file) for file in files]


def page(results: Path, name: str) -> str:
    """Return a page's text. Raises UserError if its data cannot be read or lacks something."""
    try:
        text = _environment(results).get_template(f"{Path(name).name}.j2").render()
    except jinja2.UndefinedError as error:
        raise UserError(f"{name}: its data lacks something ({error.message})") from None
    return figures.joined(text)


def _environment(results: Path) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters.update(f=figures.shown, percentile=figures.percentile, attribute=attribute)
    env.filters.update(rate=format_rate, size=format_size, time=format_time)
    modules = (baselines, changing, figures, gain_map, iterations, observed, public_traces, statistics)
    env.globals.update({module.__name__.rpartition(".")[2]: module for module in modules})
    env.globals.update(
        data=lambda name: kept.kept(results, name, KINDS.get(name, Any)),
        study=lambda name: kept.kept(results, name, Study),
        note=lambda name: kept.note(results, name),
        basis=basis_of,
        setting=describe_setting,
        least_at_once=LEAST_AT_ONCE,
        simulator_config=SimulatorConfig(),
        papers_cluster=Setting(),
        papers_tables=papers_tables,
        zip=zip,
    )
    return env


def attribute(value: Any, name: str) -> Any:
    return None if value is None else getattr(value, name)


def main(arguments: list[str] | None = None) -> int:
    """Write all pages. A user's error is one line and exit status 2."""
    options = kept.page_parser("pages", __doc__).parse_args(arguments)

    def work() -> int:
        texts = {name: page(options.results, name) for name in names()}
        for name, text in texts.items():
            (options.results / name).write_text(text, encoding="utf-8")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
