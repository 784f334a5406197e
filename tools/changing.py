"""Networks that change during a job: the cells of configs/changing.yaml, and statistics of iterations over time.

Rule of this file: running and counting. It takes about 15 minutes. Times are seconds, rates bits per second.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from prophet_scheduler.core.settings import DEFAULT_MONITOR_S
from prophet_scheduler.core.status import AgentStatus
from prophet_scheduler.core.units import format_rate
from prophet_scheduler.lab.cluster_config import ClusterConfig
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.iterations import rests_from
from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.records import read_status, read_worker
from tools.studies import measured

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
    """One job: the start of each iteration, and the end of the last. A job without Prophet has no status."""

    policy: str
    regimes: Sequence[Regime]
    starts_s: Sequence[float]
    recuts: int | None = None
    last_recut_s: float | None = None
    why: str = ""
    block_bytes: Sequence[int] = ()


def regimes(cluster: ClusterConfig) -> list[Regime]:
    """Return the networks of a cell, in order of time."""
    rates, traffic = [(0.0, cluster.bandwidth.default), *cluster.bandwidth.changes], cluster.traffic
    moments = sorted({at for at, _ in rates} | {at for each in traffic for at in (each.from_s, each.until_s)})
    in_order = []
    for begin, end in zip(moments, [*moments[1:], None], strict=True):
        rate = next(rate for at, rate in reversed(rates) if at <= begin)
        others = max((each.rate for each in traffic if each.from_s <= begin < each.until_s), default=0.0)
        in_order.append(Regime(JobNetwork(rate, others), begin, end))
    return in_order


def iterations(series: Series, regime: Regime, since_s: float = 0.0) -> list[float]:
    """Return the seconds of each iteration within the regime that begins `since_s` after its start or later."""
    return [
        end - begin
        for begin, end in itertools.pairwise(series.starts_s)
        if begin >= regime.from_s + since_s and (regime.until_s is None or end <= regime.until_s)
    ]


def settled_s(series: Series | None, regime: Regime) -> float | None:
    """Return the mean iteration time from SETTLED_S after the regime's start; None if there is no such iteration."""
    settled = [] if series is None else iterations(series, regime, SETTLED_S)
    return fmean(settled) if settled else None


def near_after(took: Sequence[float], steady_s: float) -> int | None:
    """Return the number of iterations before the first NEXT in a row that are near; None if there are none."""
    runs = (median(took[place : place + NEXT]) for place in range(len(took) - NEXT + 1))
    return next((place for place, value in enumerate(runs) if value <= steady_s * (1 + NEAR)), None)


def seen(series: Series) -> list[Regime]:
    """Return the regimes in which the job had iterations."""
    return [regime for regime in series.regimes if iterations(series, regime)]


def steady_s(series: Series) -> float:
    """Return the mean iteration time at rest, on the only network that the job had."""
    (regime,) = seen(series)
    begins = [begin for begin in series.starts_s if begin >= regime.from_s]
    return fmean(iterations(series, regime)[rests_from(begins[:-1], series.last_recut_s) :])


def rows(jobs: Sequence[Sequence[Series]]) -> list[list[dict[str, Any]]]:
    """Return the rows of each cell with a changing network; `jobs` are by cell.

    `steady_s` is Prophet's time on this network if a job had it from start to end, else None; `off` is the share by
    which it is slower here.
    """
    ours = [(cell, series) for cell in jobs for series in cell if series.policy == OURS]
    alone = {seen(series)[0].network: steady_s(series) for _, series in ours if len(seen(series)) == 1}
    cells = []
    for cell, series in ours:
        if len(seen(series)) < 2:
            continue
        stock, of_cell = next((each for each in cell if each.policy == STOCK), None), []
        for regime in series.regimes:
            ours_s, best_s = settled_s(series, regime), alone.get(regime.network)
            if ours_s is not None:
                near = None if best_s is None else near_after(iterations(series, regime), best_s)
                off = None if best_s is None else ours_s / best_s - 1
                times = {"stock_s": settled_s(stock, regime), "ours_s": ours_s, "steady_s": best_s}
                of_cell.append(
                    {"network": regime.network, "from_s": regime.from_s, **times, "off": off, "near_after": near}
                )
        cells.append(of_cell)
    return cells


def series_of(
    policy: str, cluster: ClusterConfig, workers: Sequence[WorkerRecord], status: AgentStatus | None = None
) -> Series:
    """Return a job's data to keep."""
    trained_s = max(worker.marks[1].start for worker in workers)
    last = None if status is None or status.last_recut_s is None else round(status.last_recut_s - trained_s, 3)
    return Series(
        policy,
        regimes(cluster),
        [round(mark.start - trained_s, 4) for mark in workers[0].marks],
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
