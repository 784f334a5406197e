"""View of an experiment's results: each cell's setting in words, and a table.

Rule of this file: turn results.json into text. results.py computes the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType

from prophet_scheduler.core.units import format_rate, format_size, format_time
from prophet_scheduler.lab.faults import JobFault
from prophet_scheduler.lab.iterations import basis, time_columns
from prophet_scheduler.lab.records import CellResult, PolicyResult, Results
from prophet_scheduler.lab.screen import table_of


def describe_narrow_link(name: str | None) -> str:
    """Name the narrow link. A worker's uplink and downlink have the same rate, so they are named together."""
    words = "worker uplink (and downlink)" if name == "worker uplink" else name
    return f"narrow link: {words or 'none, no link is limited'}"


def describe_setting(setting: Mapping[str, Any]) -> str:
    """Describe a cell briefly, e.g. `250mbit, total_bytes 25.6MB`."""
    words: list[str] = []
    for key, value in setting.items():
        try:
            words += _words(key, value)
        except (TypeError, ValueError, LookupError, AttributeError):  # from a damaged file
            words.append(f"{key} {value}")
    return ", ".join(words)


def _words(key: str, value: Any) -> list[str]:
    if key == "bandwidth" and isinstance(value, list):
        return [" ".join(f"{format_rate(point['rate'])}@{point['at_s']:g}s" for point in value)]
    if key == "bandwidth":
        if not isinstance(value, Mapping):
            return [_rate(value)]
        return [" ".join(f"{node}={_rate(rate)}" for node, rate in value.items())]
    if key == "delay":
        return [f"delay {format_time(value)}"]
    if key == "traffic":
        return [
            f"others' {format_rate(part['rate'])} at {part['node']} {part['from_s']:g}-{part['until_s']:g}s"
            for part in value
        ]
    if key == "rate_mix":
        parts = zip(value["shares"], value["chances"], strict=True)
        return ["rates x " + " ".join(f"{share:.3g}({chance:.0%})" for share, chance in parts if chance > 0)]
    if key == "faults":
        return [JobFault.model_validate(fault).words() for fault in value] or ["no fault"]
    if key == "policies":
        return []
    is_size = isinstance(value, int | float) and key.endswith("_bytes")
    return [f"{key} {format_size(value) if is_size else value}"]


def _rate(value: float | None) -> str:
    return "not shaped" if value is None else format_rate(value)


def basis_of(cells: Iterable[CellResult], at_rest: bool = False) -> str:
    """Return a sentence on what these cells' times are, as `basis`; empty if they have none."""
    several = [policy.iteration_s for cell in cells for policy in cell.policies.values() if policy.iteration_s]
    return basis(several, at_rest) if several else ""


def print_results(results: Results, console: Console) -> None:
    """Print a table for each cell, with notes on its policies below."""
    if words := basis_of(results.cells):
        console.print(words, markup=False)
    for cell in results.cells:
        console.print(_table(cell))
        for name, policy in cell.policies.items():
            for note in _notes(policy):
                console.print(f"  {name}: {note}", style="red" if policy.error is not None else "", markup=False)
            for role, lines in policy.log_tail.items():
                for line in lines:
                    console.print(f"  {name}: {role}: {line}", style="dim", markup=False, highlight=False)


def _table(cell: CellResult) -> RenderableType:
    bound = cell.lower_bound_s
    of = " (at the measured rate of unshaped links)" if cell.bound_is_measured else ""
    limits = "" if bound is None else f"\nlower bound {bound:.3f} s{of}, compute alone {cell.compute_s:.3f} s"
    title = f"{describe_setting(cell.setting)}; {describe_narrow_link(cell.narrow_link)}{limits}"
    headings, times = time_columns([policy.iteration_s for policy in cell.policies.values()])
    rows = [
        (
            name,
            *(row if policy.time_s is not None else ["failed", *row[1:]]),
            "-" if policy.samples_per_s is None else f"{policy.samples_per_s:.0f}",
            "-" if name not in cell.ratios else f"{cell.ratios[name]:.2f}",
            "-" if bound is None or policy.time_s is None else f"{policy.time_s / bound:.2f}",
        )
        for (name, policy), row in zip(cell.policies.items(), times, strict=True)
    ]
    # Without padding and with short lines, all columns fit into 80 characters.
    narrow = [heading.replace(" ", "\n") for heading in ("policy", *headings, "samples /s", "x stock", "x bound")]
    return table_of(narrow, rows, title, cell.emulated, padding=0)


def _notes(policy: PolicyResult) -> Iterator[str]:
    """Yield the error, and what has no column, with its key in results.json."""
    if policy.error is not None:
        yield policy.error
    for key in ("ended_after_s", "narrow_link", "accuracy", "same_weights_as_stock"):
        if (value := getattr(policy, key)) is not None:
            yield f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
    if policy.convergence is not None:
        losses = policy.convergence.model_dump(exclude={"curve", "times_to_loss_s"}, exclude_none=True)
        yield ", ".join(f"{key} {value:.4g}" for key, value in losses.items())
    if policy.agent is not None and policy.agent.watchdog_releases:
        yield f"watchdog_releases {policy.agent.watchdog_releases}"
