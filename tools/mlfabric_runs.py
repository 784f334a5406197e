"""MLfabric's runs for numbers in the paper's text, as values to keep.

Rule of this file: simulations and timings; no text. mlfabric_cells.py has Table 2. MLfabric's studies
(prophet_mlfabric/studies) read no clock; this file does. Times are seconds.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from prophet_mlfabric.scheduler import Scheduler
from prophet_mlfabric.studies.cluster import ASYNC, MLFABRIC_S, RR_SYNC, TR_SYNC, mlfabric_a
from prophet_mlfabric.studies.settings import COMPUTE, GBIT, NETWORK, RESNET152_BYTES, Setting, TrafficMix
from prophet_mlfabric.studies.tables import (
    PAPER_SCHEDULING_MS,
    RATES,
    iteration_s,
    lda_setting,
    random_batch,
    replication_savings,
    setting_of,
)
from prophet_mlfabric.studies.training import Sgd, SgdProblem, loss_curves

FIGURE = "mlfabric-delay-bound.png"
BOUNDS = (10, 15, 20, 30, None)
CONSTANTS = (0.5, 2.0, 8.0, 32.0)
"""Candidates for C in section 3.1's step size. The best one without a bound is used for all bounds."""
NEAR = 0.01
"""Excess loss to which the table of convergence gives the time."""
HORIZON_S = 120.0
AGGREGATORS = (1, 4, 16)
"""Numbers of aggregators to try; the paper does not give its number."""


def text_numbers() -> dict[str, Any]:
    """Run the settings of section 7's text.

    `lag_*` are shares; `sync_*` is MLfabric-S's iteration over the ring's, `slowed` RR-Sync's iteration in C2-N1 over
    that of an undisturbed cluster, and `savings` the updates per message to the replica, by divergence bound.
    """
    bounded = mlfabric_a(30)
    lag = {
        name: iteration_s(replace(setting, report_lag_s=2.0), bounded) / iteration_s(setting, bounded) - 1
        for name, setting in {
            "lag_n2": setting_of("C1", "N2"),
            "lag_skewed": replace(setting_of("C1", "N1"), traffic=TrafficMix((GBIT, 10 * GBIT), (0.2, 0.8))),
        }.items()
    }
    ratios = {
        (compute, network): iteration_s(setting_of(compute, network), MLFABRIC_S)
        / iteration_s(setting_of(compute, network), RR_SYNC)
        for compute in COMPUTE
        for network in NETWORK
    }
    others = [ratio for cell, ratio in ratios.items() if cell != ("C2", "N1")]
    large, small = replace(setting_of("C2", "N2"), model_bytes=RESNET152_BYTES), setting_of("C2", "N2")
    calm = replace(Setting(traffic=TrafficMix((10 * GBIT,), (1.0,))), stragglers=replace(COMPUTE["C1"], chance=0.0))
    calm_s, lda = iteration_s(calm, RR_SYNC), lda_setting()
    return {
        **lag,
        "n2_s": iteration_s(setting_of("C1", "N2"), bounded),
        "lda_async_s": iteration_s(lda, ASYNC),
        "lda_30_s": iteration_s(lda, bounded),
        "lda_60_s": iteration_s(lda, mlfabric_a(60)),
        "lda_ring_s": iteration_s(lda, RR_SYNC),
        "slowed": iteration_s(setting_of("C2", "N1"), RR_SYNC) / calm_s,
        "calm_s": calm_s,
        "sync_least": min(others),
        "sync_most": max(others),
        "sync_c2_n1": ratios["C2", "N1"],
        "large_tree_s": iteration_s(large, TR_SYNC),
        "large_s": iteration_s(large, MLFABRIC_S),
        "small_saved": 1 - iteration_s(small, MLFABRIC_S) / iteration_s(small, TR_SYNC),
        "savings": list(replication_savings((1.0, 30.0, 600.0)).items()),
    }


def convergence(figures: Path) -> tuple[float, list[dict[str, Any]]]:
    """Return (constant of the step size, convergence by delay bound), and draw the figure.

    `*_to_near` is None if a job did not get that near.
    """
    problem, setting = SgdProblem.synthetic(), Setting()
    least = problem.least_loss()

    def final(constant: float) -> float:
        return loss_curves(setting, [None], problem, constant, HORIZON_S)[None].curve.losses[-1]

    constant = min(CONSTANTS, key=final)
    curves: Mapping[int | None, Sgd] = loss_curves(setting, BOUNDS, problem, constant, HORIZON_S)
    draw_loss_curves(curves, least, figures / FIGURE)

    def reached(value: float) -> float | None:
        return None if value == math.inf else value

    return constant, [
        {
            "bound": bound,
            "mean_delay": statistics.fmean(trained.record.delays),
            "greatest_delay": max(trained.record.delays),
            "dropped": trained.record.dropped_part,
            "applied": len(trained.record.delays),
            "above_least": trained.curve.losses[-1] - least,
            "updates_to_near": reached(trained.curve.updates_to(least + NEAR)),
            "seconds_to_near": reached(trained.curve.time_to(least + NEAR)),
        }
        for bound, trained in curves.items()
    ]


def scheduling_ms(count: int, rates: str, aggregators: int, seeds: Sequence[int]) -> float:
    """Return the median milliseconds to schedule a batch of `count` updates, one batch per seed (section 7.4).

    They are processor time, which other processes do not affect: the elapsed time on an idle core.
    """
    took_s = []
    for seed in seeds:
        updates, network = random_batch(count, rates, seed)
        scheduler = Scheduler(len(network) - 1, range(min(aggregators, count // 2)), delay_bound=1)
        began = time.process_time()
        scheduler.schedule(updates, network, 0.0)
        took_s.append(time.process_time() - began)
    return statistics.median(took_s) * 1e3


def scheduler_times(seeds: Sequence[int] = range(5)) -> list[dict[str, Any]]:
    """Return the milliseconds by batch size, for each kind of rates and number of aggregators."""
    return [
        {
            "rates": rates,
            "aggregators": aggregators,
            "by_updates_ms": {count: scheduling_ms(count, rates, aggregators, seeds) for count in PAPER_SCHEDULING_MS},
        }
        for rates in RATES
        for aggregators in AGGREGATORS
    ]


def measure(figures: Path) -> dict[str, Any]:
    """Run everything, and draw the figure in the folder `figures`, the page's.

    `scheduling` has the machine's load average of the minute before.
    """
    constant, rows = convergence(figures)
    scheduling = {"load": os.getloadavg()[0], "times": scheduler_times()}
    return {
        "text": text_numbers(),
        "scheduling": scheduling,
        "constant": constant,
        "convergence": rows,
    }


def draw_loss_curves(curves: Mapping[int | None, Sgd], least_loss: float, path: Path) -> None:
    """Draw excess loss against virtual seconds and applied updates, one line per delay bound (figures 7a and 7b)."""
    from matplotlib import pyplot

    figure, (over_time, over_updates) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for bound, trained in curves.items():
        name = "no bound" if bound is None else f"delay bound {bound}"
        label = f"{name} ({trained.record.dropped_part:.0%} dropped)"
        excess = [loss - least_loss for loss in trained.curve.losses]
        over_time.semilogy(trained.curve.times_s, excess, label=label, linewidth=1.2)
        over_updates.semilogy(trained.curve.updates, excess, linewidth=1.2)
    over_time.set_xlabel("virtual time (s)")
    over_updates.set_xlabel("applied updates")
    over_time.set_ylabel("loss above the optimum's")
    over_time.legend(frameon=False)
    for axes in (over_time, over_updates):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
