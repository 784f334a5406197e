"""What an experiment found: numbers from the runs, results.json, and the table for people.

Rule of this file: arithmetic and its presentation; the only file written is results.json. Times are
seconds. The format of results.json has a version (`schema`) and other programs read it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from prophet.core.units import format_rate, format_size
from prophet.engines.spec import STOCK
from prophet.engines.topology import ALL_REDUCE, PARAMETER_SERVER, Topology
from prophet.lab.config import Cell, Experiment
from prophet.lab.job_config import DigitsJob, SyntheticJob
from prophet.lab.narrow_link import narrow_link, seconds_per_bit
from prophet.lab.simulator_config import ASYNCHRONOUS, COLLECTIVES

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from prophet.lab.runs import CellRuns, Run

SCHEMA = 1


def summarize(experiment: Experiment, cells: Sequence[CellRuns]) -> dict[str, Any]:
    """results.json as a value."""
    return {
        "schema": SCHEMA,
        "config": experiment.source,
        "repeats": experiment.repeats,
        "cells": [summarize_cell(cell) for cell in cells],
    }


def summarize_cell(done: CellRuns) -> dict[str, Any]:
    """One cell: its setting, bound, policies and ratios to stock (above 1 is faster than stock)."""
    cell = done.cell
    policies = {name: summarize_policy(cell, runs) for name, runs in done.runs.items()}
    narrow = narrow_link(cell.cluster, simulated_topology(cell) if done.simulated else PARAMETER_SERVER)
    for policy in () if done.simulated else cell.policies:
        own = narrow_link(cell.cluster, policy.engine.topology)
        if own != narrow:
            policies[policy.name]["narrow_link"] = own
    _compare_weights(cell, policies)
    medians = {name: summary["iteration_s"]["median"] for name, summary in policies.items() if "iteration_s" in summary}
    stock = medians.get(STOCK)
    return {
        "setting": dict(cell.setting),
        "emulated": emulation(cell, simulated=done.simulated),
        "narrow_link": narrow,
        "links": dict(done.links),
        "compute_s": compute_s(cell),
        "lower_bound_s": lower_bound(cell),
        "policies": policies,
        "ratios": {} if stock is None else {name: stock / value for name, value in medians.items()},
    }


def simulated_topology(cell: Cell) -> Topology:
    """Of the exchange that the config names for the simulator."""
    return ALL_REDUCE if cell.simulator.exchange in COLLECTIVES else PARAMETER_SERVER


def _compare_weights(cell: Cell, policies: Mapping[str, dict[str, Any]]) -> None:
    """Says of each policy whether its model is that of stock in the same framework (they begin differently)."""
    references = {
        policy.framework: policies[policy.name].get("weights_sha256")
        for policy in reversed(cell.policies)
        if policy.base == STOCK
    }
    for policy in cell.policies:
        reference, found = references.get(policy.framework), policies[policy.name].get("weights_sha256")
        if policy.base != STOCK and None not in (reference, found):
            policies[policy.name]["same_weights_as_stock"] = found == reference


def summarize_policy(cell: Cell, runs: Sequence[Run]) -> dict[str, Any]:
    """One policy over its repeats. What succeeded is counted also where another repeat failed."""
    summary: dict[str, Any] = {}
    good = [run for run in runs if run.error is None]
    per_repeat = [_measured(run, cell.job.warmup) for run in good]
    if good:
        pooled = np.concatenate(per_repeat)
        middle = float(np.median(pooled))
        low, high = np.percentile(pooled, [10, 90])
        compute = compute_s(cell)
        digests = sorted(
            {worker["weights_sha256"] for run in good for worker in run.workers if "weights_sha256" in worker}
        )
        starts = [worker["start_s"] for run in good for worker in run.workers if "start_s" in worker]
        summary = {
            "iteration_s": {"median": middle, "p10": float(low), "p90": float(high)},
            "samples_per_s": cell.job.batch_size * cell.cluster.workers / middle,
            "wait_s": None if compute is None else middle - compute,
            "repeats": [float(np.median(one)) for one in per_repeat],
            **good[0].measures,
        }
        if starts:  # a real job, with a start and a model at its end
            summary["start_s"] = median(starts)
            summary["weights_sha256"] = digests[0] if len(digests) == 1 else digests
        if good[0].statuses:
            summary["agent"] = _agent(good)
    if isinstance(cell.job, DigitsJob) and good:
        summary["accuracy"] = min(worker["accuracy"] for run in good for worker in run.workers)
    error = _error(cell, runs, summary)
    if error is not None:
        summary["error"] = error
        summary["log_tail"] = next((dict(run.log_tail) for run in runs if run.error is not None), {})
    return summary


def _measured(run: Run, warmup: int) -> NDArray[Any]:
    """Times of all iterations of all workers after the warm-up, in seconds."""
    return np.concatenate([worker["iteration_s"][warmup:] for worker in run.workers])


def _agent(runs: Sequence[Run]) -> dict[str, Any]:
    """What Prophet cost and did: `cpu_share` is the agent thread's processor time over that of training."""
    shares = []
    for run in runs:
        for worker, status in zip(run.workers, run.statuses, strict=True):
            shares.append(status["agent_cpu_s"] / sum(worker["iteration_s"]))
    statuses = [status for run in runs for status in run.statuses]
    return {
        "cpu_share": median(shares),
        "plans": max(status["plans"] for status in statuses),
        "watchdog_releases": sum(status["hook"]["watchdog_releases"] for status in statuses),
        "push_credit": statuses[-1]["push_credit"],
        "partition_bytes": statuses[-1]["partition_bytes"],
        "network": statuses[-1]["network"],
    }


def _error(cell: Cell, runs: Sequence[Run], summary: Mapping[str, Any]) -> str | None:
    """One line, or None where nothing went wrong."""
    failed = [(repeat, run.error) for repeat, run in enumerate(runs) if run.error is not None]
    if failed:
        repeat, error = failed[0]
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return f"repeat {repeat + 1} of {len(runs)}: {error}{others}"
    if isinstance(summary.get("weights_sha256"), list):
        return f"{len(summary['weights_sha256'])} different models at the end of {len(runs)} runs from one seed"
    if isinstance(cell.job, DigitsJob) and summary["accuracy"] < cell.job.target_accuracy:
        return f"accuracy {summary['accuracy']:.3f}, below the target of {cell.job.target_accuracy:g}"
    return None


def compute_s(cell: Cell) -> float | None:
    """Seconds of computing in an iteration, where that is known: in a replay."""
    return None if cell.profile is None else cell.profile.backward_s + cell.profile.forward_s


def lower_bound(cell: Cell) -> float | None:
    """Seconds an iteration takes at least; None where no bound is known.

    That is so for real training, whose compute is not known exactly, for asynchronous servers and under a changing
    rate. The rate of the bound (prophet/core/bound.py) is that of the slowest worker's link, or a worker's part of
    the servers' links where that is less: every worker's bytes go through them. In an all-reduce of p workers
    each sends at least 2 (p-1)/p of the bytes.
    """
    from prophet.core.bound import lower_bound_s

    exchange = cell.simulator.exchange
    if cell.profile is None or cell.cluster.bandwidth.changes or exchange == ASYNCHRONOUS:
        return None
    links = seconds_per_bit(cell.cluster, simulated_topology(cell))
    return lower_bound_s(cell.profile, 1 / max(links.values()) / 8) if links else None


def emulation(cell: Cell, *, simulated: bool = False) -> str:
    """What was real and what was not, in one line."""
    if simulated:
        return "simulated: queue, policies and learning as in a job; computing, links and servers on a virtual clock"
    compute = "compute and data real"
    if cell.profile is not None:
        compute = "compute replaced by sleeping"
    elif isinstance(cell.job, SyntheticJob):
        compute = "compute real, data random"
    engines = list(dict.fromkeys(policy.engine.words for policy in cell.policies))
    return f"{', '.join(engines)} real; {compute}; network: shaped veth on one machine"


def describe_narrow_link(name: str | None) -> str:
    """For people. A link is as wide down as up, so a worker's two are named together."""
    words = "worker uplink, and the downlink alike" if name == "worker uplink" else name
    return f"narrow link: {words or 'none, no link is limited'}"


def failures(results: Mapping[str, Any]) -> int:
    """How many policies failed, in all cells."""
    return sum("error" in policy for cell in results["cells"] for policy in cell["policies"].values())


def write_results(results: Mapping[str, Any], path: Path) -> None:
    """Writes results.json as a whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    partial.replace(path)


def describe_setting(setting: Mapping[str, Any]) -> str:
    """A cell in a few words: `250mbit, total_bytes 25.6MB`."""
    words = []
    for key, value in setting.items():
        if key == "bandwidth":
            words.append(_describe_bandwidth(value))
        elif key == "policies":
            continue
        else:
            words.append(f"{key} {format_size(value) if key.endswith('_bytes') else value}")
    return ", ".join(words)


def _describe_bandwidth(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{node}={format_rate(rate)}" for node, rate in value.items())
    if isinstance(value, list):
        return " ".join(f"{format_rate(point['rate'])}@{point['at_s']:g}s" for point in value)
    return format_rate(value)


def print_results(results: Mapping[str, Any], console: Console) -> None:
    """One table a cell, and below it what else is to be said of each policy."""
    for cell in results["cells"]:
        console.print(_table(cell))
        for name, policy in cell["policies"].items():
            for note in _notes(policy):
                console.print(f"  {name}: {note}", style="red" if "error" in policy else "", markup=False)
            for role, lines in policy.get("log_tail", {}).items():
                for line in lines:
                    console.print(f"  {name}: {role}: {line}", style="dim", markup=False, highlight=False)


def _table(cell: Mapping[str, Any]) -> RenderableType:
    from rich.box import SIMPLE
    from rich.table import Table

    bound = cell["lower_bound_s"]
    limits = "" if bound is None else f"\nlower bound {bound:.3f} s, compute alone {cell['compute_s']:.3f} s"
    title = f"{describe_setting(cell['setting'])}; {describe_narrow_link(cell['narrow_link'])}{limits}"
    table = Table(title=title, caption=cell["emulated"], title_justify="left", caption_justify="left", box=SIMPLE)
    table.add_column("policy", no_wrap=True)
    for heading in ("iteration s", "p10-p90", "samples/s", "x stock", "x bound"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, policy in cell["policies"].items():
        if "iteration_s" not in policy:
            table.add_row(name, "failed", *"----")
            continue
        times = policy["iteration_s"]
        ratio = cell["ratios"].get(name)
        table.add_row(
            name,
            f"{times['median']:.3f}",
            f"{times['p10']:.3f}-{times['p90']:.3f}",
            f"{policy['samples_per_s']:.0f}",
            "-" if ratio is None else f"{ratio:.2f}",
            "-" if bound is None else f"{times['median'] / bound:.2f}",
        )
    return table


def _notes(policy: Mapping[str, Any]) -> list[str]:
    notes = []
    if "error" in policy:
        notes.append(policy["error"])
    if "narrow_link" in policy:
        notes.append(describe_narrow_link(policy["narrow_link"]))
    if "accuracy" in policy:
        notes.append(f"accuracy {policy['accuracy']:.1%}")
    if "same_weights_as_stock" in policy:
        notes.append(f"{'the same' if policy['same_weights_as_stock'] else 'OTHER'} final weights as stock")
    if "tuning" in policy:
        credit, partition = (format_size(policy["tuning"][key]) for key in ("credit_bytes", "partition_bytes"))
        notes.append(f"tuned to credit {credit} and partitions of {partition}")
    if policy.get("agent", {}).get("watchdog_releases"):
        notes.append(f"the watchdog released {policy['agent']['watchdog_releases']} transfers")
    return notes
