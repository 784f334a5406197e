"""MLfabric on real transfers: the nine cells of configs/mlfabric, beside the same cells simulated, and their page.

Rule of this file: what is run, and the page docs/results/mlfabric.md; what stands under its tables is
mlfabric_reasons.py's, and what is simulated mlfabric_simulated.py's. `make mlfabric` runs it, for about half an hour on
a quiet machine; what an earlier run left is not run again. With --simulated nothing real is run.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import CellResult, ConvergenceResult
from tools import kept
from tools.cells import measured
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.markdown import shown, table
from tools.mlfabric_reasons import (
    CameTo,
    Pair,
    both,
    of_paper,
    papers_cluster,
    ratio,
    said,
    same_clusters,
)
from tools.mlfabric_simulated import (
    IN_STEP,
    OURS,
    RELEASED,
    RING,
    MlfabricSimulated,
    SimulatedCell,
    paper_cell,
    simulate,
)

CONFIGS = Path("configs/mlfabric")
PAGE = "mlfabric.md"
NAME = "mlfabric"
SIMULATED_NAME = "mlfabric-simulated"
COMMAND = "make mlfabric"
PLACES = ("c1", "c2", "c3"), ("n1", "n2", "n3")
CONTENDERS = (OURS, RELEASED, IN_STEP, RING)

INTRODUCTION = f"""# MLfabric on real transfers

Made by `{COMMAND}` from `{CONFIGS}`: the nine cells of MLfabric's section 7, stragglers C1 to C3 and background
traffic N1 to N3. Real here: BytePS and its servers, PyTorch's gloo, the coordinator, gradients and updates of a
logistic regression on scikit-learn's digits, and the network (shaped veth pairs between namespaces on one machine).
Most of computing is sleeping. `{RELEASED}` is BytePS's own asynchronous mode (on a server that answers, see
[corrections](../corrections.md#answering)), `{OURS}` the same servers with updates that a coordinator grants, whole;
`{IN_STEP}` and `{RING}` train in step, on BytePS's synchronous
servers with Prophet and on PyTorch's ring. Rates are drawn alike for all of them."""

BESIDE = f"""In parentheses: simulated (`python -m tools.mlfabric_real --simulated`, without a real network). The
very rates over time, slow computations, samples, batches and steps of the configs, on a virtual clock; what a message,
a coordinator or a processor costs is not in it. The rates over time begin with the simulated job, and with the real one
once all workers have ended their first iteration. `{IN_STEP}` sums and answers in blocks of 128 KiB. Simulated
updates of `{OURS}` are applied in the order that was decided, so a slow one holds up those after it; real ones are
applied as they come. A dash: not measured, or the loss was not reached within the job."""


@dataclass(frozen=True)
class RealCells:
    """Studies that are kept, by the name of a cell such as `c1-n1`."""

    cells: Mapping[str, Study]


def outcome(cell: CellResult | None, policy: str) -> ConvergenceResult | None:
    """Return a policy's result; None if it is missing, or failed before it had any loss."""
    result = None if cell is None else cell.policies.get(policy)
    return None if result is None else result.convergence


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    stored = kept.kept(results, NAME, RealCells)
    kept_beside = kept.kept(results, SIMULATED_NAME, MlfabricSimulated)
    real: Mapping[str, CellResult] = {}
    parts = [INTRODUCTION]
    if stored is None:
        parts.append(kept.otherwise(results, NAME, COMMAND))
    else:
        real = {name: study.points[0].cell for name, study in stored[1].cells.items()}
        parts.append(stored[0].line())
    beside: Mapping[str, SimulatedCell] = {}
    if kept_beside is not None:
        beside = kept_beside[1].cells
        parts.append(kept_beside[0].line("Simulated"))
    names = sorted({*real, *beside})
    if names:
        came_to = {
            policy: {name: (outcome(real.get(name), policy), simulated(beside, name, policy)) for name in names}
            for policy in CONTENDERS
        }
        parts += [
            said(came_to) if real else "",
            BESIDE,
            "## Time to the loss",
            times_table(came_to),
            "## Seconds an applied update",
            "Of all workers together, while all of them train.",
            updates_table(came_to),
            "## Delays and drops",
            "Delays are versions, counted by the coordinator (Eq. 9). A dropped update pushes nothing.",
            delays_table(came_to[OURS]),
            same_clusters(came_to, beside),
        ]
    if kept_beside is not None:
        parts.append(papers_cluster(kept_beside[1].paper))
    return kept.joined(*parts, kept.note(results, "mlfabric-seen"))


def simulated(cells: Mapping[str, SimulatedCell], name: str, policy: str) -> ConvergenceResult | None:
    """Return a policy's result on the virtual clock; None if it was not simulated."""
    cell = cells.get(name)
    return None if cell is None else cell.contenders.get(policy)


def times_table(came_to: CameTo) -> str:
    """Return a row for each cell."""
    rows = [
        (
            name.upper(),
            *(_both(both(came_to[policy][name], "time_to_loss_s"), 1) for policy in CONTENDERS),
            *(_both(ratio(came_to, name, other), 2) for other in (RELEASED, RING)),
            f"{of_paper(name):.2f}",
        )
        for name in came_to[OURS]
    ]
    columns = ("cell", *(f"{policy} (s)" for policy in CONTENDERS))
    return table((*columns, f"{RELEASED} / {OURS}", f"{RING} / {OURS}", "the paper's, ring / MLfabric-A"), rows)


def updates_table(came_to: CameTo) -> str:
    """Return a row for each cell."""
    rows = [
        (name.upper(), *(_both(both(came_to[policy][name], "update_s"), 3) for policy in CONTENDERS))
        for name in came_to[OURS]
    ]
    return table(("cell", *CONTENDERS), rows)


def delays_table(pairs: Mapping[str, Pair]) -> str:
    """Return a row for each cell, of MLfabric."""
    rows = [
        (
            name.upper(),
            *(_both(both(pair, count), 0) for count in ("greatest_delay", "sent", "dropped")),
            *(shown(both(pair, count)[0], ".0f") for count in ("uncoordinated", "applied_otherwise")),
        )
        for name, pair in pairs.items()
    ]
    columns = ("cell", "greatest delay", "sent", "dropped", "without a grant", "workers with another number applied")
    return table(columns, rows)


def _both(pair: tuple[float | None, float | None], digits: int) -> str:
    real, simulated = (shown(value, f".{digits}f") for value in pair)
    return f"{real} ({simulated})"


def write_simulated(names: Sequence[str], configs: Path, results: Path) -> int:
    """Simulate these cells, add them to what is kept, and write the page. Raises UserError and OSError."""
    stored = kept.kept(results, SIMULATED_NAME, MlfabricSimulated)
    cells = {} if stored is None else dict(stored[1].cells)
    paper = {} if stored is None else dict(stored[1].paper)
    for name in names:
        cells[name] = simulate(load_experiment(configs / f"{name}.yaml").cells[0])
        compute, _, network = name.upper().partition("-")
        paper[name] = paper_cell(compute, network)
    order = sorted(cells)
    together = MlfabricSimulated({name: cells[name] for name in order}, {name: paper[name] for name in order})
    kept.publish(results, SIMULATED_NAME, MlfabricSimulated, together, PAGE, page)
    return 0


def write_page(names: Sequence[str], configs: Path, out: Path, results: Path, repeats: int | None) -> int:
    """Run what is missing of these cells, add the results to what is kept, and write the page.

    Raises UserError and OSError.
    """
    console = Console()
    stored = kept.kept(results, NAME, RealCells)
    cells = {} if stored is None else dict(stored[1].cells)
    for name in names:
        cells[name] = measured(configs / f"{name}.yaml", out / name, repeats, console)
        kept.publish(results, NAME, RealCells, RealCells({n: cells[n] for n in sorted(cells)}), PAGE, page)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    every = [f"{compute}-{network}" for compute in PLACES[0] for network in PLACES[1]]
    parser = page_parser("mlfabric_real", __doc__)
    parser.add_argument("cells", nargs="*", choices=[[], *every], help="such as c1-n1; all nine where none is named")
    parser.add_argument("--simulated", action="store_true", help="what is simulated alone: about two minutes")
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--out", type=Path, default=Path("build", NAME), help="folder for the runs")
    parser.add_argument("--repeats", type=int, help="in place of the configs'")
    options = parser.parse_args(arguments)
    names = options.cells or every

    def work() -> int:
        write_simulated(names, options.configs, options.results)
        if options.simulated:
            return 0
        return write_page(names, options.configs, options.out, options.results, options.repeats)

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
