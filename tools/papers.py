"""The papers' tables, simulated: what each paper measured beside what the simulator gives for the same setting.

Rule of this file: running the configs of configs/papers/, keeping what came out, and putting the page together; the
tables are paper_studies.py's. `make papers` writes docs/results/papers.md anew, in about two minutes. MLfabric, whose
cluster is no config of the simulator, has its part from mlfabric_page.py; what orders are worth is paper_orders.py's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from tools import kept, mlfabric_page, mlfabric_runs, paper_orders
from tools.cells import simulated
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.markdown import table
from tools.mlfabric_runs import MlfabricRuns
from tools.paper_orders import Orders
from tools.paper_studies import STUDIES, PaperStudy
from tools.provenance import Provenance

PAGE = "papers.md"
NAME = "papers"

INTRODUCTION = """# The papers' tables, simulated

Made by `make papers` from configs/papers/ with Prophet's simulator, MLfabric's part with a cluster of its own
(docs/policies/mlfabric.md); nothing was fitted to a result that it is compared with. Simulated values are of *this*
project's queue and policies on an idealised cluster: what they can be held against is the order of the policies, the
sign and the size of gains, and where curves meet, rather than the last digit. What differs, and why, stands below
each table. Every policy learns its job and its network from simulated events; PACE and Caramel are given a trace of
operations as well, as in their papers (docs/simulator.md).
"""


@dataclass(frozen=True)
class PapersData:
    """Data of the page: the studies by config, TicTac's orders, and MLfabric's runs."""

    studies: Mapping[str, Study]
    orders: Orders
    mlfabric: MlfabricRuns


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(
        INTRODUCTION, kept.section(results, NAME, PapersData, "make papers", text), kept.note(results, "papers-seen")
    )


def text(data: PapersData, measured: Provenance) -> str:
    """Return the simulated results: a section for each study, and MLfabric's part."""
    cells = [point.cell for study in data.studies.values() for point in study.points]
    sections = [f"{measured.line('Simulated')} {kept.said_of(cells, at_rest=True)}"]
    for study in STUDIES:
        sections.append(section(study, data.studies[study.config]))
        if study.config == "tictac.yaml":
            sections.append(paper_orders.section(data.orders))
    return kept.joined(*sections, mlfabric_page.section(data.mlfabric))


def section(study: PaperStudy, data: Study) -> str:
    """Return one study as a section of the page."""
    about = f"`configs/papers/{study.config}`. {study.assumed}"
    rows = table(study.columns, study.rows(data.points))
    return f"## {study.title}\n\n{about}\n\n{rows}\n{study.remarks(data.points)}\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("papers", __doc__)
    parser.add_argument("--configs", type=Path, default=Path("configs/papers"))
    options = parser.parse_args(arguments)
    return exit_status(lambda: write_page(options.configs, options.results))


def write_page(configs: Path, results: Path) -> int:
    """Simulate all studies, keep them and write the page. Raises UserError and OSError."""
    console = Console(stderr=True)
    studies = {study.config: simulated(configs / study.config, console) for study in STUDIES}
    data = PapersData(studies, paper_orders.measure(), mlfabric_runs.measure(results))
    kept.publish(results, NAME, PapersData, data, PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
