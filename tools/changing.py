"""Networks that change under a job: the cells of configs/changing.yaml and their page.

Rule of this file: what is counted of iterations over time, and the page docs/results/changing.md. `make changing` runs
it, for about a quarter of an hour on a quiet machine. Times are seconds, rates bits per second.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rich.console import Console

from prophet_scheduler.core.settings import DEFAULT_MONITOR_S
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.config import Experiment, load_experiment
from prophet_scheduler.lab.iterations import rests_from
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.records import read_status, read_worker
from tools import kept
from tools.cells import measured, simulated_runs
from tools.command_line import exit_status, page_parser
from tools.markdown import shown, table
from tools.provenance import Provenance

CONFIG = Path("configs/changing.yaml")
PAGE = "changing.md"
NAME = "changing"
SIMULATED = "changing-simulated"
COMMAND, SIMULATED_COMMAND = "make changing", "python -m tools.changing --simulate"
STOCK, OURS = "stock", "prophet"
SETTLED_S = 2 * DEFAULT_MONITOR_S
"""Seconds after a network came from which its iterations count: two looks of the bandwidth monitor."""
NEAR = 0.05
"""Target: within this share of the job's time on that network by itself."""
NEXT = 5
"""Window of an iteration and those after it, whose median has to be near."""

INTRODUCTION = f"""# Networks that change under a job

Made by `{COMMAND}` from `{CONFIG}`. Real here: BytePS, the gradients, the optimizer, and the network (shaped veth pairs
between namespaces on one machine, in which another sender takes its part of a token bucket); computing is sleeping. A
network's iterations count from {SETTLED_S:g} s after it came: seconds are their mean. *By itself* is a job of its own
that never has another network, and its mean at rest: since blocks last changed, or of its last half. *Until near* is
how many iterations pass before the middle one of {NEXT} in a row is at most {NEAR:.0%} above that."""
SIMULATION = (
    "The same config on the simulator's virtual clock, which has no interface whose counters show other traffic."
)
COLUMNS = (
    "network",
    "after",
    "stock (s)",
    "Prophet (s)",
    "by itself (s)",
    "off",
    "until near (iterations)",
)


@dataclass(frozen=True)
class JobNetwork:
    """A worker's network: the rate of its link, and what others take of one worker's."""

    rate: float | None
    others: float = 0.0

    def __str__(self) -> str:
        words = "not shaped" if self.rate is None else format_rate(self.rate)
        return f"{words}, {format_rate(self.others)} of it others'" if self.others else words


@dataclass(frozen=True)
class Regime:
    """A network from one moment to another, counted from when the job had trained for an iteration.

    The last one has no end.
    """

    network: JobNetwork
    from_s: float
    until_s: float | None = None


@dataclass(frozen=True)
class Series:
    """One job: when each of its iterations began, and the last one ended. A simulated job has no status."""

    policy: str
    regimes: Sequence[Regime]
    starts_s: Sequence[float]
    recuts: int | None = None
    last_recut_s: float | None = None
    why: str = ""
    block_bytes: Sequence[int] = ()


@dataclass(frozen=True)
class RegimeRow:
    """One network of a job that changes; `steady_s` is None if no job had it by itself."""

    network: JobNetwork
    from_s: float
    stock_s: float | None
    ours_s: float
    steady_s: float | None
    near_after: int | None

    @property
    def off(self) -> float | None:
        """Share by which it is slower than by itself."""
        return None if self.steady_s is None else self.ours_s / self.steady_s - 1


def regimes(cluster: ClusterConfig) -> list[Regime]:
    """Return the networks of a cell, in order of time."""
    bandwidth, traffic = cluster.bandwidth, cluster.traffic
    rates = [(0.0, bandwidth.default), *bandwidth.changes]
    moments = sorted({0.0, *(at for at, _ in rates), *(t.from_s for t in traffic), *(t.until_s for t in traffic)})
    in_order = []
    for begin, end in itertools.pairwise([*moments, None]):
        assert begin is not None
        rate = next(rate for at, rate in reversed(rates) if at <= begin)
        others = max((t.rate for t in traffic if t.from_s <= begin < t.until_s), default=0.0)
        in_order.append(Regime(JobNetwork(rate, others), begin, end))
    return in_order


def iterations(series: Series, regime: Regime) -> list[tuple[float, float]]:
    """Return (begin, counted from the regime's; duration) of the iterations that lie within it."""
    return [
        (begin - regime.from_s, end - begin)
        for begin, end in itertools.pairwise(series.starts_s)
        if begin >= regime.from_s and (regime.until_s is None or end <= regime.until_s)
    ]


def settled_s(series: Series, regime: Regime) -> float | None:
    """Return the mean once the network has been there for SETTLED_S; None if no iteration came then."""
    settled = [took for since, took in iterations(series, regime) if since >= SETTLED_S]
    return fmean(settled) if settled else None


def near_after(took: Sequence[float], steady_s: float) -> int | None:
    """Return how many iterations pass before NEXT in a row are near; None if that never comes."""
    runs = (median(took[place : place + NEXT]) for place in range(len(took) - NEXT + 1))
    return next((place for place, value in enumerate(runs) if value <= steady_s * (1 + NEAR)), None)


def steady(jobs: Sequence[Series]) -> dict[JobNetwork, float]:
    """Return Prophet's time on each network that a job had by itself."""
    by_network = {}
    for series in jobs:
        seen = [regime for regime in series.regimes if iterations(series, regime)]
        if len(seen) == 1 and series.policy == OURS:
            (regime,) = seen
            begin, took = zip(*iterations(series, regime), strict=True)
            first = rests_from([regime.from_s + since for since in begin], series.last_recut_s)
            by_network[regime.network] = fmean(took[first:])
    return by_network


def rows(jobs: Sequence[Sequence[Series]]) -> list[list[RegimeRow]]:
    """Return a list for each cell with a network that changes; `jobs` are those of each cell."""
    by_itself = steady([series for cell in jobs for series in cell])
    cells = []
    for cell in jobs:
        by_policy = {series.policy: series for series in cell}
        ours, stock = by_policy.get(OURS), by_policy.get(STOCK)
        if ours is None or sum(bool(iterations(ours, regime)) for regime in ours.regimes) < 2:
            continue
        cells.append(list(_rows(ours, stock, by_itself)))
    return cells


def _rows(ours: Series, stock: Series | None, by_itself: dict[JobNetwork, float]) -> Iterator[RegimeRow]:
    for regime in ours.regimes:
        ours_s = settled_s(ours, regime)
        if ours_s is None:
            continue
        steady_s = by_itself.get(regime.network)
        took = [took for _, took in iterations(ours, regime)]
        yield RegimeRow(
            regime.network,
            regime.from_s,
            None if stock is None else settled_s(stock, regime),
            ours_s,
            steady_s,
            None if steady_s is None else near_after(took, steady_s),
        )


def series_of(
    policy: str, cluster: ClusterConfig, workers: Sequence[WorkerRecord], status: AgentStatus | None = None
) -> Series:
    """Return what is kept of a job. A simulated one counts from its beginning, as its networks do."""
    starts = [mark.start for mark in workers[0].marks]
    simulated = workers[0].start_s is None
    trained_s = starts[0] if simulated else max(worker.marks[1].start for worker in workers)
    last = None if status is None or status.last_recut_s is None else round(status.last_recut_s - trained_s, 3)
    return Series(
        policy,
        regimes(cluster),
        [round(start - trained_s, 4) for start in starts],
        None if status is None else status.recuts,
        last,
        "" if status is None else status.recut_reason,
        () if status is None else sorted({segment.block_bytes for segment in status.cut}),
    )


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(
        INTRODUCTION,
        kept.section(results, NAME, list[list[Series]], COMMAND, text),
        "## Simulated",
        SIMULATION,
        kept.section(
            results, SIMULATED, list[list[Series]], SIMULATED_COMMAND, functools.partial(text, done="Simulated")
        ),
        kept.note(results, "changing-seen"),
    )


def text(jobs: list[list[Series]], provenance: Provenance, done: str = "Measured") -> str:
    """Return the results of one kind of run."""
    cells = rows(jobs)
    tables = [table(COLUMNS, [_row(row) for row in cell]) for cell in cells]
    return kept.joined(provenance.line(done), said(cells), *tables, recuts(jobs))


def said(cells: Sequence[Sequence[RegimeRow]]) -> str:
    """Return where Prophet stands, in a sentence."""
    known = [(row, row.off) for cell in cells for row in cell if row.off is not None]
    if not known:
        return "No network was measured both in a job that changes and by itself."
    far = [f"; {row.network} after {row.from_s:g} s: {off:+.1%}" for row, off in known if off > NEAR]
    slower = f"more than {NEAR:.0%} slower than by itself on {len(far)}"
    return f"**Of {len(known)} networks Prophet is {slower}{''.join(far)}.**"


def recuts(jobs: Sequence[Sequence[Series]]) -> str:
    """Return how blocks were recut in the jobs whose networks change, if a status says it."""
    lines = []
    for series in (series for cell in jobs for series in cell if series.recuts is not None and series.policy == OURS):
        blocks = " and ".join(f"{size >> 10}" for size in series.block_bytes)
        words = ", then ".join(str(regime.network) for regime in series.regimes)
        last = "" if series.last_recut_s is None else f", the last after {series.last_recut_s:.0f} s ({series.why})"
        lines.append(f"- {words}: {series.recuts} recuts{last}; blocks of {blocks} KiB at the end.")
    return "\n".join(lines)


def _row(row: RegimeRow) -> tuple[str, ...]:
    return (
        str(row.network),
        f"{row.from_s:g} s",
        shown(row.stock_s),
        shown(row.ours_s),
        shown(row.steady_s),
        shown(row.off, "+.1%"),
        "never" if row.near_after is None else str(row.near_after),
    )


def measured_jobs(experiment: Experiment, out: Path) -> list[list[Series]]:
    """Return the jobs of each cell that `tools.cells.measured` left in `out`. Raises UserError."""
    jobs = []
    for number, cell in enumerate(experiment.cells):
        of_cell = []
        for policy in cell.policies:
            folder = out / f"cell{number}" / "runs" / "cell0" / f"{policy.name}-repeat1"
            workers = [read_worker(folder / f"worker{n}.json") for n in range(cell.cluster.workers)]
            status = folder / "worker0.status.json"
            of_cell.append(
                series_of(policy.name, cell.cluster, workers, read_status(status) if status.exists() else None)
            )
        jobs.append(of_cell)
    return jobs


def simulated_jobs(experiment: Experiment, console: Console) -> list[list[Series]]:
    """Return the same jobs on the simulator. Raises UserError."""
    return [
        [series_of(name, cell.cell.cluster, runs[0].workers) for name, runs in cell.runs.items() if runs[0].workers]
        for cell in simulated_runs(experiment, console)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("changing", __doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=Path("build/changing"), help="folder for the runs")
    parser.add_argument("--simulate", action="store_true", help="on a virtual clock instead")
    options = parser.parse_args(arguments)
    return exit_status(lambda: write_page(options.config, options.out, options.results, options.simulate))


def write_page(config: Path, out: Path, results: Path, simulate: bool) -> int:
    """Run what is missing of the config, keep the results and write the page. Raises UserError and OSError."""
    console = Console()
    experiment = load_experiment(config)
    if simulate:
        jobs = simulated_jobs(experiment, console)
    else:
        measured(config, out, None, console)
        jobs = measured_jobs(experiment, out)
    kept.publish(results, SIMULATED if simulate else NAME, list[list[Series]], jobs, PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
