"""MLfabric by hand: one simulated job, and how long its scheduler takes.

Rule of this file: arguments in, a table or JSON out, and the one clock. What is simulated is in studies/mlfabric.

`python -m tools.mlfabric train --compute C2 --network N1 --delay-bound 30` trains a small problem;
`... scheduler` measures section 7.4's scheduling time on this machine. docs/policies/mlfabric.md has more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.table import Table

from prophet_mlfabric.scheduler import Scheduler
from prophet_mlfabric.studies.cluster import METHODS, Consistency
from prophet_mlfabric.studies.settings import COMPUTE, NETWORK, RESNET50_BYTES, Setting
from prophet_mlfabric.studies.tables import PAPER_SCHEDULING_MS, RATES, random_batch
from prophet_mlfabric.studies.training import SgdProblem, StepSize, train
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import parse_rate, parse_size
from prophet_scheduler.models.profiles import find_profile
from tools.command_line import exit_status

AGGREGATORS = (1, 4, 16)
"""Numbers of aggregators tried; the paper does not say how many there were."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--method": {"choices": list(METHODS), "default": "mlfabric-a"},
    "--compute": {"choices": list(COMPUTE), "default": "C1", "help": "stragglers"},
    "--network": {"choices": list(NETWORK), "default": "N1", "help": "background traffic"},
    "--delay-bound": {"type": int, "help": "tau_max; none where left out"},
    "--staleness": {"type": int, "default": 2, "help": "K of stale synchronous servers"},
    "--divergence-bound": {"type": float, "help": "Div_max; with it there is a replica"},
    "--momentum": {"type": float, "default": 0.0},
    "--learning-rate": {"type": float, "default": 0.1},
    "--seconds": {"type": float, "default": 60.0, "help": "virtual time"},
    "--workers": {"type": int, "default": 30},
    "--machines": {"type": int, "help": "half as many as workers where left out"},
    "--bandwidth": {"default": "10gbit", "help": "of each machine's NIC"},
    "--profile": {"help": "take model size and computing time from it: a file, or such as resnet50"},
    "--model-size": {"help": "of a model and of an update; 100MB where left out"},
    "--compute-s": {"type": float, "help": "seconds to compute one update; 0.1 where left out"},
    "--seed": {"type": int, "default": 0},
    "--json": {"action": "store_true"},
}
"""Options of `train`."""


def scheduling_ms(count: int, rates: str, aggregators: int, repeats: int = 5) -> list[float]:
    """Return the milliseconds for ordering and aggregation of one batch of `count` updates, each repeat with another
    seed.

    They are processor time: what a clock shows on an idle core, whatever else runs meanwhile.
    """
    times = []
    for seed in range(repeats):
        updates, network = random_batch(count, rates, seed)
        scheduler = Scheduler(len(network) - 1, range(min(aggregators, count // 2)), delay_bound=1)
        began = time.process_time()
        scheduler.schedule(updates, network, 0.0)
        times.append((time.process_time() - began) * 1e3)
    return times


def scheduler_times(repeats: int = 5) -> dict[tuple[str, int], dict[int, float]]:
    """Return the median milliseconds by batch size, for each kind of rates and each number of aggregators."""
    return {
        (rates, aggregators): {
            count: statistics.median(scheduling_ms(count, rates, aggregators, repeats)) for count in PAPER_SCHEDULING_MS
        }
        for rates in RATES
        for aggregators in AGGREGATORS
    }


def setting_of_arguments(options: argparse.Namespace) -> Setting:
    """Return the cluster that the arguments describe. Raises UserError if it is impossible."""
    try:
        bandwidth = parse_rate(options.bandwidth) / 8
        size = None if options.model_size is None else parse_size(options.model_size)
    except ValueError as error:
        raise UserError(str(error)) from None
    model_bytes, compute_s = RESNET50_BYTES, 0.1
    if options.profile is not None:
        profile = find_profile(options.profile)
        model_bytes, compute_s = profile.total_bytes, profile.forward_s + profile.backward_s
    return Setting(
        COMPUTE[options.compute],
        NETWORK[options.network],
        options.workers,
        max(1, options.workers // 2) if options.machines is None else options.machines,
        bandwidth,
        model_bytes if size is None else size,
        compute_s if options.compute_s is None else options.compute_s,
        seed=options.seed,
    )


def train_job(options: argparse.Namespace) -> dict[str, object]:
    """Train as the arguments say. Returns the outcome in seconds, bytes and updates."""
    setting = setting_of_arguments(options)
    own = {name: getattr(options, name) for name in ("delay_bound", "staleness", "divergence_bound", "momentum")}
    method = replace(METHODS[options.method], **own)
    problem = SgdProblem.synthetic()
    # A synchronous step sums all workers' updates.
    share = setting.workers if method.consistency is Consistency.SYNCHRONOUS else 1
    trained = train(setting, method, problem, StepSize(options.learning_rate / share), options.seconds)
    record, loss = trained.record, trained.curve.losses[-1]
    return {
        "updates_applied": len(record.applied_s),
        "updates_dropped": len(record.dropped_s),
        "seconds_for_as_many_updates_as_workers": setting.workers / record.updates_per_s if record.applied_s else None,
        "greatest_delay": max(record.delays, default=0),
        "mean_delay": statistics.fmean(record.delays) if record.delays else 0.0,
        "messages_to_server": record.sent_to_server,
        "messages_to_replica": record.sent_to_replica,
        "updates_replicated": record.replicated,
        "loss": loss,
        "loss_above_least": loss - problem.least_loss(),
        **({} if trained.most_diverged is None else {"greatest_divergence": trained.most_diverged}),
    }


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.mlfabric", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    job = commands.add_parser("train", help="train a small problem on the paper's cluster, on a virtual clock")
    for name, about in OPTIONS.items():
        job.add_argument(name, **about)
    timing = commands.add_parser("scheduler", help="how long one large batch takes to schedule, on this machine")
    timing.add_argument("--repeats", type=int, default=5)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Exit status 2 with one line for an error of the user's."""
    options = _arguments().parse_args(arguments)
    return exit_status(lambda: show(options))


def show(options: argparse.Namespace) -> int:
    """Run the command and print its result. Raises UserError."""
    if options.command == "scheduler":
        if options.repeats < 1:
            raise UserError(f"--repeats {options.repeats}: give 1 or more")
        table = Table("rates", "aggregators", *(f"{count} updates" for count in PAPER_SCHEDULING_MS))
        rows = [
            (rates, str(aggregators), row) for (rates, aggregators), row in scheduler_times(options.repeats).items()
        ]
        for rates, aggregators, times in [*rows, ("the paper", "", PAPER_SCHEDULING_MS)]:
            table.add_row(rates, aggregators, *(f"{milliseconds:.1f} ms" for milliseconds in times.values()))
    else:
        summary = train_job(options)
        if options.json:
            print(json.dumps(summary, indent=2))
            return 0
        table = Table("", "value")
        for name, value in summary.items():
            table.add_row(name.replace("_", " "), f"{value:.6g}" if isinstance(value, float) else str(value))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
