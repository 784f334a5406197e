"""Figures of an experiment: iteration times by policy, one iteration's transfers as a Gantt chart, utilisation.

Rule of this file: drawing; the numbers are those of results.json and transfers.py. Importing this file raises
MissingPackage if matplotlib is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.optional import need, need_pyplot, save_figure
from prophet_scheduler.lab.records import CellResult, Results
from prophet_scheduler.lab.results_view import describe_narrow_link, describe_setting
from prophet_scheduler.lab.transfers import RecordedRun, Turnaround, mean_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

pyplot = need_pyplot()
Patch = need("matplotlib.patches", "figures").Patch

PUSH, PULL, OTHER, WAIT = "#2f6db3", "#e08214", "#b0b7c3", "#d9a0a0"
COLOURS = {QueueKind.PUSH: PUSH, QueueKind.PULL: PULL}
LABELS = {QueueKind.PUSH: "push, all-reduce", QueueKind.PULL: "pull"}
BACKWARD, FORWARD = "#eceff4", "#e3f1e3"
LEGEND: Any = {"loc": "outside upper right", "frameon": False}
THROUGHPUT_BIN_S = 0.05
THROUGHPUT_ITERATIONS = 3


@contextmanager
def _panels(path: Path, count: int, each: float, label: str, **how: Any) -> Iterator[tuple[Any, Sequence[Axes]]]:
    """Yield a figure of `count` stacked panels, each `each` inches high, and write it to `path` afterwards."""
    how = {"figsize": (9, 1 + each * count), "sharex": True, **how}
    figure, panels = pyplot.subplots(count, 1, squeeze=False, layout="constrained", **how)
    yield figure, panels[:, 0]
    panels[-1, 0].set_xlabel(label)
    save_figure(figure, path)
    pyplot.close(figure)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left")


def draw_iteration_times(results: Results, path: Path) -> None:
    """Draw each policy's mean iteration time with median and p10-p90, a panel per cell, the lower bound as a line."""
    cells = results.cells
    rows = [max(2, len(cell.policies)) for cell in cells]
    size = (8, 1.2 + sum(0.35 * count + 0.7 for count in rows))
    label = "iteration time (s): mean; black: median, p10-p90; x: speedup over stock"
    with _panels(path, len(cells), 0, label, figsize=size, height_ratios=rows, sharex=False) as (figure, panels):
        for axes, cell in zip(panels, cells, strict=True):
            measured = {name: policy.iteration_s for name, policy in cell.policies.items() if policy.iteration_s}
            for row, (name, times) in enumerate(measured.items()):
                axes.barh(row, times.headline, color=PUSH if name == "prophet" else OTHER)
                axes.plot([times.p10, times.p90], [row, row], color="black", linewidth=1, marker="|")
                axes.plot(times.median, row, color="black", marker="d", markersize=4)
                ratio = cell.ratios.get(name)
                text = f"{times.headline:.3f} s" + ("" if ratio is None else f"   {ratio:.2f}x")
                end = max(times.headline, times.p90)
                axes.annotate(text, (end, row), xytext=(6, 0), textcoords="offset points", va="center")
            axes.set_yticks(range(len(measured)), list(measured))
            axes.invert_yaxis()
            axes.margins(x=0.2)
            axes.spines[["top", "right"]].set_visible(False)
            title = f"{describe_setting(cell.setting)}, {describe_narrow_link(cell.narrow_link)}"
            if cell.lower_bound_s is not None:
                axes.axvline(cell.lower_bound_s, color="black", linestyle="--", linewidth=1)
                title += f"   (dashed: lower bound, {cell.lower_bound_s:.3f} s)"
            _title(axes, title)
        figure.suptitle(cells[0].emulated, fontsize=8, color="dimgray")


def draw_utilisation(cell: CellResult, path: Path) -> None:
    """Draw the use of one worker's processor and link over one simulated iteration, a panel per policy."""
    shown = {name: policy for name, policy in cell.policies.items() if policy.over_time is not None}
    label = "ms after backward began; lines: up (blue) and down (orange)"
    with _panels(path, len(shown), 1.6, label) as (_, panels):
        for axes, (name, policy) in zip(panels, shown.items(), strict=True):
            series = policy.over_time
            assert series is not None
            width_ms = series.period_s * 1e3 / len(series.processor)
            times = [(place + 0.5) * width_ms for place in range(len(series.processor))]
            axes.fill_between(times, series.processor, step="mid", color=FORWARD, label="processor")
            axes.set(ylabel="processor", ylim=(0, 1.05))
            links = axes.twinx()
            for rates, colour in ((series.uplink_bytes_per_s, PUSH), (series.downlink_bytes_per_s, PULL)):
                links.plot(times, [rate * 8e-6 for rate in rates], color=colour, linewidth=1)
            links.set(ylabel="Mbit/s")
            links.set_ylim(bottom=0)
            processor, up = policy.processor_utilisation or 0.0, policy.uplink_bytes_per_s or 0.0
            _title(axes, f"{name}: processor {processor:.0%}, up {up * 8e-6:.0f} Mbit/s on average")


def draw_gantt(runs: Sequence[RecordedRun], path: Path) -> None:
    """Draw the last complete iteration of each run: the transfers of each gradient or block, over the compute."""
    longest_s = 0.0
    with _panels(path, len(runs), 2.6, "ms after backward began (0 is the first layer's)") as (figure, panels):
        for axes, run in zip(panels, runs, strict=True):
            last = len(run.marks) - 2
            began, ended = run.iterations(last, 1)
            _shade(axes, 0.0, run.marks[last].backward_end - began, BACKWARD)
            _shade(axes, run.marks[last + 1].start - began, ended - began, FORWARD)
            under_way = [t for t in run.transfers if began <= t.finish_s and t.start_s < ended]
            rows = {id_: row for row, id_ in enumerate(sorted({transfer.gradient for transfer in under_way}))}
            for queue, offset in ((QueueKind.PUSH, -0.25), (QueueKind.PULL, 0.25)):
                shown = [transfer for transfer in under_way if transfer.queue is queue]
                places = [rows[each.gradient] + offset for each in shown]
                took_ms = [(each.finish_s - each.start_s) * 1e3 for each in shown]
                from_ms = [(each.start_s - began) * 1e3 for each in shown]
                axes.barh(places, took_ms, height=0.5, left=from_ms, color=COLOURS[queue])
            axes.set_ylabel("block" if run.arena else "gradient")
            axes.invert_yaxis()
            _title(axes, f"{run.policy}: {(ended - began) * 1e3:.0f} ms")
            longest_s = max(longest_s, ended - began)
        panels[0].set_xlim(0, longest_s * 1e3)
        handles = [Patch(color=colour, label=LABELS[queue]) for queue, colour in COLOURS.items()]
        handles += [Patch(color=BACKWARD, label="backward"), Patch(color=FORWARD, label="next forward and waiting")]
        figure.legend(handles=handles, ncols=len(handles), **LEGEND)


def draw_turnarounds(runs: Mapping[str, Sequence[Turnaround]], path: Path) -> None:
    """Draw each gradient's wait and its trip to the server and back (the paper's Fig. 11), a panel per policy.

    Does nothing if no policy has a complete recorded iteration.
    """
    runs = {name: times for name, times in runs.items() if times}
    if not runs:
        return
    label = "ms after backward began, medians (tensor 0 is the first layer's)"
    with _panels(path, len(runs), 1.8, label) as (figure, panels):
        for axes, (name, times) in zip(panels, runs.items(), strict=True):
            for row, gradient in enumerate(times):
                axes.barh(row, gradient.wait_s * 1e3, left=gradient.generated_s * 1e3, height=0.9, color=WAIT)
                on_the_way_s = gradient.back_s - gradient.starts_s
                axes.barh(row, on_the_way_s * 1e3, left=gradient.starts_s * 1e3, height=0.9, color=PUSH)
            means = mean_s(times)
            waits = f"{len(times)} tensors wait {means.wait_s * 1e3:.0f} ms"
            _title(axes, f"{name}: {waits} and are back after {means.total_s * 1e3:.0f} ms on average")
            axes.set_ylabel("tensor")
            axes.invert_yaxis()
        panels[0].set_xlim(0, 1.02e3 * max(gradient.back_s for times in runs.values() for gradient in times))
        way = Patch(color=PUSH, label="in flight, until the sum has arrived")
        figure.legend(handles=[Patch(color=WAIT, label="waiting"), way], ncols=2, **LEGEND)


def draw_throughput(runs: Sequence[RecordedRun], path: Path) -> None:
    """Draw the rates of a worker over its last iterations, THROUGHPUT_ITERATIONS at most (the paper's Fig. 10).

    Recordings from an engine's own trace have no sizes and are left out. Does nothing if no runs remain.
    """
    shown = [run for run in runs if any(transfer.size_bytes for transfer in run.transfers)]
    if not shown:
        return
    count = min(THROUGHPUT_ITERATIONS, *(len(run.marks) - 1 for run in shown))
    with _panels(path, len(shown), 1.8, f"s, over {count} iterations") as (figure, panels):
        for axes, run in zip(panels, shown, strict=True):
            began, ended = run.iterations(len(run.marks) - 1 - count, count)
            edges = np.arange(began, ended + THROUGHPUT_BIN_S, THROUGHPUT_BIN_S)
            sent = 0
            for queue in QueueKind:
                moved = [t for t in run.transfers if t.queue is queue and began <= t.finish_s < ended]
                sizes = [t.size_bytes for t in moved]
                sent += sum(sizes) if queue is QueueKind.PUSH else 0
                rate, _ = np.histogram([t.finish_s for t in moved], edges, weights=sizes)
                mb_per_s = rate / THROUGHPUT_BIN_S / 1e6
                axes.plot(edges[:-1] - began, mb_per_s, color=COLOURS[queue], label=LABELS[queue])
            _title(axes, f"{run.policy}: {sent / (ended - began) / 1e6:.1f} MB/s sent on average")
            axes.set_ylabel("MB/s")
            axes.set_ylim(bottom=0)
        figure.legend(*panels[0].get_legend_handles_labels(), ncols=2, **LEGEND)


def _shade(axes: Axes, start_s: float, end_s: float, colour: str) -> None:
    axes.axvspan(start_s * 1e3, end_s * 1e3, color=colour, linewidth=0, zorder=0)
