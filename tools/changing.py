"""Networks that change during a job: the cells of configs/changing.yaml, and statistics of iterations over time.

Rule of this file: running and counting. `make changing` runs it; it takes about 15 minutes on a quiet machine. Times
are seconds, rates bits per second.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from prophet_scheduler.core.settings import DEFAULT_MONITOR_S
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.iterations import rests_from
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.records import read_status, read_worker
from tools.studies import measured, simulated_runs

CONFIG = Path("configs/changing.yaml")
STOCK, OURS = "stock", "prophet"
SETTLED_S = 2 * DEFAULT_MONITOR_S
"""Seconds after a network's start until its iterations count: two intervals of the bandwidth monitor."""
NEAR = 0.05
"""Target: an iteration is near if at most this share slower than on that network alone."""
NEXT = 5
"""Number of consecutive iterations whose median has to be near."""


@dataclass(frozen=True)
class JobNetwork:
    """A worker's network: the rate of its link, and the part of one worker's link that other traffic takes."""

    rate: float | None
    others: float = 0.0

    def __str__(self) -> str:
        words = "not shaped" if self.rate is None else format_rate(self.rate)
        return f"{words}, {format_rate(self.others)} of it others'" if self.others else words


@dataclass(frozen=True)
class Regime:
    """A network and its period, counted from the end of the job's first iteration. The last one has no end."""

    network: JobNetwork
    from_s: float
    until_s: float | None = None


@dataclass(frozen=True)
class Series:
    """One job: the start of each iteration, and the end of the last. A simulated job has no status."""

    policy: str
    regimes: Sequence[Regime]
    starts_s: Sequence[float]
    recuts: int | None = None
    last_recut_s: float | None = None
    why: str = ""
    block_bytes: Sequence[int] = ()


@dataclass(frozen=True)
class RegimeRow:
    """One network of a job with several; `steady_s` is None if no job had only this network."""

    network: JobNetwork
    from_s: float
    stock_s: float | None
    ours_s: float
    steady_s: float | None
    near_after: int | None

    @property
    def off(self) -> float | None:
        """Share by which it is slower than in a job with only this network."""
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
    """Return (start since the regime's start, duration) of each iteration that lies within the regime."""
    return [
        (begin - regime.from_s, end - begin)
        for begin, end in itertools.pairwise(series.starts_s)
        if begin >= regime.from_s and (regime.until_s is None or end <= regime.until_s)
    ]


def settled_s(series: Series, regime: Regime) -> float | None:
    """Return the mean iteration time from SETTLED_S after the regime's start; None if there is no such iteration."""
    settled = [took for since, took in iterations(series, regime) if since >= SETTLED_S]
    return fmean(settled) if settled else None


def near_after(took: Sequence[float], steady_s: float) -> int | None:
    """Return the number of iterations before the first NEXT in a row that are near; None if there are none."""
    runs = (median(took[place : place + NEXT]) for place in range(len(took) - NEXT + 1))
    return next((place for place, value in enumerate(runs) if value <= steady_s * (1 + NEAR)), None)


def steady(jobs: Iterable[Series]) -> dict[JobNetwork, float]:
    """Return Prophet's iteration time on each network that a job had from start to end."""
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
    """Return the rows of each cell with a changing network; `jobs` are by cell."""
    by_itself = steady(series for cell in jobs for series in cell)
    cells = []
    for cell in jobs:
        by_policy = {series.policy: series for series in cell}
        ours, stock = by_policy.get(OURS), by_policy.get(STOCK)
        if ours is None or sum(bool(iterations(ours, regime)) for regime in ours.regimes) < 2:
            continue
        of_cell = []
        for regime in ours.regimes:
            ours_s, steady_s = settled_s(ours, regime), by_itself.get(regime.network)
            if ours_s is not None:
                stock_s = None if stock is None else settled_s(stock, regime)
                took = [took for _, took in iterations(ours, regime)]
                near = None if steady_s is None else near_after(took, steady_s)
                of_cell.append(RegimeRow(regime.network, regime.from_s, stock_s, ours_s, steady_s, near))
        cells.append(of_cell)
    return cells


def series_of(
    policy: str, cluster: ClusterConfig, workers: Sequence[WorkerRecord], status: AgentStatus | None = None
) -> Series:
    """Return a job's data to keep. A simulated job's times count from its beginning, as its networks do."""
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


def measure(out: Path, results: Path) -> list[list[Series]]:
    """Run missing jobs, and return all by cell. Raises UserError."""
    measured(CONFIG, out)
    jobs = []
    for number, cell in enumerate(load_experiment(CONFIG).cells):
        of_cell = []
        for policy in cell.policies:
            folder = out / f"cell{number}" / "runs" / "cell0" / f"{policy.name}-repeat1"
            workers = [read_worker(folder / f"worker{n}.json") for n in range(cell.cluster.workers)]
            file = folder / "worker0.status.json"
            of_cell.append(series_of(policy.name, cell.cluster, workers, read_status(file) if file.exists() else None))
        jobs.append(of_cell)
    return jobs


def simulate(out: Path, results: Path) -> list[list[Series]]:
    """Return the same jobs, run on the simulator. Raises UserError."""
    return [
        [series_of(name, cell.cell.cluster, runs[0].workers) for name, runs in cell.runs.items() if runs[0].workers]
        for cell in simulated_runs(load_experiment(CONFIG))
    ]
