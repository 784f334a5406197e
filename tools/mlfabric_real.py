"""MLfabric on real transfers: the nine cells of configs/mlfabric, simulated as well, and their page.

Rule of this file: what is run and counted, and the page docs/results/mlfabric.md. `make mlfabric` runs it, for about
two hours on a quiet machine; what an earlier run left is not run again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console

from prophet.core.errors import UserError
from prophet.lab.config import Cell, load_experiment
from prophet.lab.job_config import AsynchronousJob
from prophet.lab.records import CellResult, ConvergenceResult
from prophet.studies.mlfabric.cluster import ASYNC, RR_SYNC, Method, mlfabric_a, run
from prophet.studies.mlfabric.settings import Setting, Stragglers, TrafficMix
from prophet.studies.mlfabric.tables import PAPER_TABLE_2
from tools import kept
from tools.cells import measured
from tools.exit_status import exit_status
from tools.kept import Study
from tools.markdown import table
from tools.provenance import here

CONFIGS = Path("configs/mlfabric")
PAGE = "mlfabric.md"
NAME = "mlfabric"
COMMAND = "make mlfabric"
PLACES = ("c1", "c2", "c3"), ("n1", "n2", "n3")
OURS, RELEASED, IN_STEP, RING = "mlfabric", "released", "in-step", "ring"
"""The contenders of the configs."""
SIMULATED_S = 200.0
SEEDS = (0, 1, 2)
NEAR = 0.02
"""MLfabric is to be ahead of BytePS's own asynchronous mode, or no further behind."""
FAR_AHEAD = 1.7
"""Where the paper has it so far ahead of the ring, it is to be ahead here."""

INTRODUCTION = f"""# MLfabric on real transfers

Made by `{COMMAND}` from `{CONFIGS}`: the nine cells of MLfabric's section 7, stragglers C1 to C3 and background
traffic N1 to N3. Real here: BytePS and its servers, PyTorch's gloo, the coordinator, gradients and updates of a
logistic regression on scikit-learn's digits, and the network (shaped veth pairs between namespaces on one machine).
Most of computing is sleeping. `{RELEASED}` is BytePS's own asynchronous mode (on a server that answers, see
[corrections](../corrections.md#answering)), `{OURS}` the same servers with updates that a coordinator grants, whole;
`{IN_STEP}` and `{RING}` train in step, on BytePS's synchronous
servers with Prophet and on PyTorch's ring. Rates are drawn alike for all of them. The paper's 30 workers,
simulated, are on [another page](papers.md)."""


@dataclass(frozen=True)
class Simulated:
    """The same cluster on a virtual clock: seconds from one applied update to the next, medians over seeds."""

    released: float
    ours: float
    ring: float


@dataclass(frozen=True)
class RealCells:
    """What is kept, by the name of a cell such as `c1-n1`."""

    cells: Mapping[str, Study]
    simulated: Mapping[str, Simulated] = field(default_factory=dict)


def simulate(cell: Cell) -> Simulated:
    """A cell's cluster in MLfabric's simulator. Raises UserError for one that has nothing to simulate."""
    job, cluster = cell.job, cell.cluster
    rate = cluster.bandwidth.default
    if not isinstance(job, AsynchronousJob) or rate is None:
        raise UserError("a cell of MLfabric's has a job of kind asynchronous, and links with a rate")
    mix = cluster.rate_mix
    shares, chances, period_s = ([1.0], [1.0], 5.0) if mix is None else (mix.shares, mix.chances, mix.period_s)
    model_bytes = float(job.features * 40)
    bounds = [policy.env.get("PROPHET_LAB_DELAY_BOUND") for policy in cell.policies]
    bound = next((int(text) for text in bounds if text), None)

    def update_s(method: Method) -> float:
        times = []
        for seed in SEEDS:
            setting = Setting(
                Stragglers(job.slow_chance, job.slow_factor),
                TrafficMix(tuple(share * rate / 8 for share in shares), tuple(chances), period_s),
                workers=cluster.workers,
                machines=cluster.workers,
                bandwidth=rate / 8,
                model_bytes=model_bytes,
                compute_s=job.compute_s,
                overlap=0.0,  # one tensor, whose gradient is there at the end
                seed=seed,
            )
            times.append(1 / run(setting, method, horizon_s=SIMULATED_S).updates_per_s)
        return median(times)

    return Simulated(update_s(ASYNC), update_s(mlfabric_a(bound)), update_s(RR_SYNC))


def outcome(cell: CellResult, policy: str) -> ConvergenceResult | None:
    """What a policy came to; None where it is not there, or failed before it had any loss."""
    result = cell.policies.get(policy)
    return None if result is None else result.convergence


def time_to_loss(cell: CellResult, policy: str) -> float | None:
    found = outcome(cell, policy)
    return None if found is None else found.time_to_loss_s


def ratio(cell: CellResult, other: str) -> float | None:
    """The time to the loss of `other` over MLfabric's: above 1 where MLfabric is ahead."""
    ours, theirs = time_to_loss(cell, OURS), time_to_loss(cell, other)
    return None if ours is None or theirs is None else theirs / ours


def page(results: Path) -> str:
    """The page, from what is kept."""
    stored = kept.kept(results, NAME, RealCells)
    if stored is None:
        return kept.joined(INTRODUCTION, kept.otherwise(results, NAME, COMMAND))
    provenance, data = stored
    cells = {name: study.points[0].cell for name, study in data.cells.items()}
    return kept.joined(
        INTRODUCTION,
        provenance.line(),
        said(cells),
        "## Time to the loss",
        times_table(cells),
        "## Seconds an applied update, real and simulated",
        "Of all workers together. In parentheses by MLfabric's simulator: the same workers, rates (drawn for each"
        " direction by itself) and computing times, without what a message, a coordinator or a processor costs.",
        updates_table(cells, data.simulated),
        "## Delays and drops",
        "Delays are versions, counted by the coordinator (Eq. 9). A dropped update pushes nothing.",
        delays_table(cells),
        kept.note(results, "mlfabric-seen"),
    )


def said(cells: Mapping[str, CellResult]) -> str:
    """Where MLfabric stands, in two sentences."""
    pairs = {name: ratio(cell, RELEASED) for name, cell in cells.items()}
    there = {name: value for name, value in pairs.items() if value is not None}
    if not there:
        return "No cell was measured in which MLfabric and BytePS's own asynchronous mode both came to the loss."
    behind = {name: value for name, value in there.items() if value < 1 - NEAR}
    named = "".join(f"; {name.upper()}: {value:.2f}" for name, value in behind.items())
    first = (
        f"**Of {len(there)} cells MLfabric is more than {NEAR:.0%} behind BytePS's own asynchronous mode in"
        f" {len(behind)}{named} (its time to the loss over MLfabric's: {min(there.values()):.2f} to"
        f" {max(there.values()):.2f}).**"
    )
    rings = {name: ratio(cell, RING) for name, cell in cells.items()}
    far = [name for name, value in rings.items() if value is not None and of_paper(name) >= FAR_AHEAD]
    ahead = [name for name in far if (rings[name] or 0.0) > 1]
    second = (
        f" Against the ring the paper has it ahead by {FAR_AHEAD} or more in {len(far)} of these cells; here it is"
        f" ahead in {len(ahead)} of them."
    )
    return first + (second if far else "")


def of_paper(name: str) -> float:
    """The paper's ratio to the ring, of a cell such as `c1-n1`."""
    compute, _, network = name.upper().partition("-")
    return PAPER_TABLE_2[compute, network]


def times_table(cells: Mapping[str, CellResult]) -> str:
    """A row for each cell."""
    rows = [
        (
            name.upper(),
            *(_shown(time_to_loss(cell, policy), 1) for policy in (OURS, RELEASED, IN_STEP, RING)),
            _shown(ratio(cell, RELEASED), 2),
            _shown(ratio(cell, RING), 2),
            f"{of_paper(name):.2f}",
        )
        for name, cell in cells.items()
    ]
    columns = ("cell", *(f"{policy} (s)" for policy in (OURS, RELEASED, IN_STEP, RING)))
    return table((*columns, f"{RELEASED} / {OURS}", f"{RING} / {OURS}", "the paper's, ring / MLfabric-A"), rows)


def updates_table(cells: Mapping[str, CellResult], simulated: Mapping[str, Simulated]) -> str:
    """A row for each cell: real, and simulated in parentheses."""

    def pair(cell: CellResult, policy: str, other: float | None) -> str:
        found = outcome(cell, policy)
        return f"{_shown(None if found is None else found.update_s, 3)} ({_shown(other, 3)})"

    rows = []
    for name, cell in cells.items():
        its = simulated.get(name)
        in_step = outcome(cell, IN_STEP)
        rows.append(
            (
                name.upper(),
                pair(cell, OURS, None if its is None else its.ours),
                pair(cell, RELEASED, None if its is None else its.released),
                _shown(None if in_step is None else in_step.update_s, 3),
                pair(cell, RING, None if its is None else its.ring),
            )
        )
    return table(("cell", OURS, RELEASED, IN_STEP, RING), rows)


def delays_table(cells: Mapping[str, CellResult]) -> str:
    """A row for each cell, of MLfabric."""
    rows = []
    for name, cell in cells.items():
        found = outcome(cell, OURS)
        if found is None or found.sent is None:
            continue
        counts = (found.greatest_delay, found.sent, found.dropped, found.uncoordinated, found.applied_otherwise)
        rows.append((name.upper(), *(_count(count) for count in counts)))
    return table(
        ("cell", "greatest delay", "sent", "dropped", "without a grant", "workers with another number applied"), rows
    )


def _shown(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _count(value: int | None) -> str:
    return "-" if value is None else str(value)


def write_page(names: Sequence[str], configs: Path, out: Path, results: Path, repeats: int | None) -> int:
    """Runs what is missing of these cells, keeps what came out with what was kept, and writes the page.

    Raises UserError and OSError.
    """
    console = Console()
    stored = kept.kept(results, NAME, RealCells)
    cells = {} if stored is None else dict(stored[1].cells)
    simulated = {} if stored is None else dict(stored[1].simulated)
    for name in names:
        config = configs / f"{name}.yaml"
        cells[name] = measured(config, out / name, repeats, console)
        simulated[name] = simulate(load_experiment(config).cells[0])
        order = sorted(cells)
        together = RealCells({n: cells[n] for n in order}, {n: simulated[n] for n in order if n in simulated})
        kept.keep(results, NAME, RealCells, together, here())
        (results / PAGE).write_text(page(results), encoding="utf-8")
    console.print(f"written to {results / PAGE}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs and writes the page; exit status 2 with one line for an error of the user's."""
    every = [f"{compute}-{network}" for compute in PLACES[0] for network in PLACES[1]]
    parser = argparse.ArgumentParser(prog="python -m tools.mlfabric_real", description=__doc__)
    parser.add_argument("cells", nargs="*", choices=[[], *every], help="such as c1-n1; all nine where none is named")
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--out", type=Path, default=Path("build", NAME), help="folder for the runs")
    parser.add_argument("--results", type=Path, default=kept.RESULTS, help="folder of the pages and their data")
    parser.add_argument("--repeats", type=int, help="in place of the configs'")
    options = parser.parse_args(arguments)
    names = options.cells or every
    return exit_status(lambda: write_page(names, options.configs, options.out, options.results, options.repeats))


if __name__ == "__main__":
    sys.exit(main())
