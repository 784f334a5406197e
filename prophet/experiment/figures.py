"""Figures of an experiment: iteration times by policy, one iteration's transfers as a gantt, utilisation over time.

Rule of this file: drawing; the numbers come from results.json's value and from transfers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from prophet.experiment.results import describe_narrow_link, describe_setting
from prophet.experiment.transfers import RecordedRun
from prophet.model import QueueKind

PUSH, PULL = "#2f6db3", "#e08214"
COLOURS = {QueueKind.PUSH: PUSH, QueueKind.PULL: PULL}
BACKWARD_COLOUR, FORWARD_COLOUR = "#eceff4", "#e3f1e3"
PROPHET_COLOUR, OTHER_COLOUR = "#2f6db3", "#b0b7c3"


def draw_iteration_times(results: Mapping[str, Any], path: Path) -> None:
    """Median iteration time of each policy with p10-p90, one panel a cell, the lower bound as a line."""
    cells = results["cells"]
    rows = [max(2, len(cell["policies"])) for cell in cells]
    figure, panels = pyplot.subplots(
        len(cells),
        1,
        figsize=(8, 1.2 + sum(0.35 * count + 0.7 for count in rows)),
        squeeze=False,
        layout="constrained",
        height_ratios=rows,
    )
    for axes, cell in zip(panels[:, 0], cells, strict=True):
        names = [name for name, policy in cell["policies"].items() if "iteration_s" in policy]
        for row, name in enumerate(names):
            times = cell["policies"][name]["iteration_s"]
            spread = [[times["median"] - times["p10"]], [times["p90"] - times["median"]]]
            colour = PROPHET_COLOUR if name == "prophet" else OTHER_COLOUR
            axes.barh(row, times["median"], color=colour, xerr=spread, capsize=3)
            ratio = cell["ratios"].get(name)
            label = f"{times['median']:.3f} s" + ("" if ratio is None else f"   {ratio:.2f}x")
            axes.annotate(label, (times["p90"], row), xytext=(6, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.spines[["top", "right"]].set_visible(False)
        title = f"{describe_setting(cell['setting'])}, {describe_narrow_link(cell['narrow_link'])}"
        if cell["lower_bound_s"] is not None:
            axes.axvline(cell["lower_bound_s"], color="black", linestyle="--", linewidth=1)
            title += f"   (dashed: lower bound, {cell['lower_bound_s']:.3f} s)"
        axes.set_title(title, fontsize=10, loc="left")
    panels[-1, 0].set_xlabel("iteration time (s): median, p10-p90, and how many times as fast as stock")
    figure.suptitle(cells[0]["emulated"], fontsize=8, color="dimgray")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_utilisation(cell: Mapping[str, Any], path: Path) -> None:
    """Processor and link of one worker over one simulated iteration, one panel a policy."""
    shown = {name: policy for name, policy in cell["policies"].items() if "over_time" in policy}
    figure, panels = pyplot.subplots(
        len(shown), 1, figsize=(9, 1 + 1.6 * len(shown)), squeeze=False, sharex=True, layout="constrained"
    )
    for axes, (name, policy) in zip(panels[:, 0], shown.items(), strict=True):
        series = policy["over_time"]
        width_ms = series["period_s"] * 1e3 / len(series["processor"])
        times = [(place + 0.5) * width_ms for place in range(len(series["processor"]))]
        axes.fill_between(times, series["processor"], step="mid", color=FORWARD_COLOUR, label="processor")
        axes.set_ylabel("processor")
        axes.set_ylim(0, 1.05)
        links = axes.twinx()
        for key, colour in (("uplink_bytes_per_s", PUSH), ("downlink_bytes_per_s", PULL)):
            links.plot(times, [value * 8e-6 for value in series[key]], color=colour, linewidth=1)
        links.set_ylabel("Mbit/s")
        links.set_ylim(bottom=0)
        share = f"processor {policy['processor_utilisation']:.0%}, up {policy['uplink_bytes_per_s'] * 8e-6:.0f} Mbit/s"
        axes.set_title(f"{name}: {share} on average", fontsize=10, loc="left")
    panels[-1, 0].set_xlabel("ms after backward began; lines: up (blue) and down (orange)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_gantt(runs: Sequence[RecordedRun], path: Path) -> None:
    """The last whole iteration of each run: when each gradient was on its way, beside computing."""
    figure, panels = pyplot.subplots(
        len(runs), 1, figsize=(9, 1 + 2.6 * len(runs)), squeeze=False, sharex=True, layout="constrained"
    )
    for axes, run in zip(panels[:, 0], runs, strict=True):
        last = len(run.marks) - 2
        began, ended = run.iterations(last, 1)
        _shade(axes, 0.0, run.marks[last]["backward_end"] - began, BACKWARD_COLOUR)
        _shade(axes, run.marks[last + 1]["start"] - began, ended - began, FORWARD_COLOUR)
        for queue, offset in ((QueueKind.PUSH, -0.25), (QueueKind.PULL, 0.25)):
            shown = [t for t in run.transfers if t.queue is queue and began <= t.finish_s and t.start_s < ended]
            axes.barh(
                [transfer.gradient + offset for transfer in shown],
                [(transfer.finish_s - transfer.start_s) * 1e3 for transfer in shown],
                height=0.5,
                left=[(transfer.start_s - began) * 1e3 for transfer in shown],
                color=COLOURS[queue],
            )
        axes.set_xlim(left=0)
        axes.set_ylabel("gradient")
        axes.invert_yaxis()
        axes.set_title(f"{run.policy}: {(ended - began) * 1e3:.0f} ms", fontsize=10, loc="left")
    handles = [Patch(color=colour, label=queue.name.lower()) for queue, colour in COLOURS.items()]
    handles += [
        Patch(color=BACKWARD_COLOUR, label="backward"),
        Patch(color=FORWARD_COLOUR, label="next forward and its waiting"),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
    panels[-1, 0].set_xlabel("ms after backward began (gradient 0 is the first layer's)")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _shade(axes: Axes, start_s: float, end_s: float, colour: str) -> None:
    axes.axvspan(start_s * 1e3, end_s * 1e3, color=colour, linewidth=0, zorder=0)
