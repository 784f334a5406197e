"""Figures of an experiment: iteration times by policy, and one iteration's transfers as a gantt.

Rule of this file: drawing; the numbers come from results.json's value and from transfers.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.patches import Patch

from prophet.experiment.results import describe_setting
from prophet.experiment.transfers import RecordedRun
from prophet.model import QueueKind

COLOURS = {QueueKind.PUSH: "#2f6db3", QueueKind.PULL: "#e08214"}
PROPHET_COLOUR, OTHER_COLOUR = "#2f6db3", "#b0b7c3"


def draw_iteration_times(results: Mapping[str, Any], path: Path) -> None:
    """Median iteration time of each policy with p10-p90, one panel a cell, the lower bound as a line."""
    cells = results["cells"]
    height = 1.2 + sum(0.4 * max(2, len(cell["policies"])) + 0.9 for cell in cells)
    ratios = [max(2, len(cell["policies"])) for cell in cells]
    figure, panels = pyplot.subplots(
        len(cells), 1, figsize=(8, height), squeeze=False, layout="constrained", height_ratios=ratios
    )
    for axes, cell in zip(panels[:, 0], cells, strict=True):
        names = [name for name, policy in cell["policies"].items() if "iteration_s" in policy]
        for row, name in enumerate(names):
            times = cell["policies"][name]["iteration_s"]
            spread = [[times["median"] - times["p10"]], [times["p90"] - times["median"]]]
            colour = PROPHET_COLOUR if name == "prophet" else OTHER_COLOUR
            axes.barh(row, times["median"], color=colour, xerr=spread, capsize=3)
            axes.annotate(f"{times['median']:.3f} s", (0, row), xytext=(4, 0), textcoords="offset points", va="center")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        if cell["lower_bound_s"] is not None:
            axes.axvline(cell["lower_bound_s"], color="black", linestyle="--", linewidth=1, label="lower bound")
            axes.legend(loc="lower right")
        axes.set_title(describe_setting(cell["setting"]), fontsize=10)
    panels[-1, 0].set_xlabel("iteration time (s): median, p10-p90")
    figure.suptitle(f"{cells[0]['emulated']}", fontsize=8, color="dimgray")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def draw_gantt(runs: Sequence[RecordedRun], path: Path) -> None:
    """The transfers of the last whole iteration of each run: when each gradient was ready, on the wire, done."""
    figure, panels = pyplot.subplots(
        len(runs), 1, figsize=(9, 1 + 2.6 * len(runs)), squeeze=False, sharex=True, layout="constrained"
    )
    for axes, run in zip(panels[:, 0], runs, strict=True):
        last = len(run.marks) - 2
        began, ended = run.iterations(last, 1)
        for transfer in run.transfers:
            if not began <= transfer.added_s < ended and not began <= transfer.finish_s < ended:
                continue
            width = (transfer.finish_s - transfer.start_s) * 1e3
            offset = 0.22 if transfer.queue is QueueKind.PUSH else -0.22
            axes.barh(
                transfer.gradient + offset, width, 0.9, (transfer.start_s - began) * 1e3, color=COLOURS[transfer.queue]
            )
        axes.axvline((run.marks[last]["backward_end"] - began) * 1e3, color="black", linewidth=0.8, linestyle=":")
        axes.axvline((ended - began) * 1e3, color="black", linewidth=0.8)
        axes.set_ylabel("gradient")
        axes.invert_yaxis()
        axes.set_title(f"{run.policy}: {(ended - began) * 1e3:.0f} ms", fontsize=10)
    handles = [Patch(color=COLOURS[queue]) for queue in COLOURS]
    panels[0, 0].legend(handles, ["push", "pull"], loc="upper left")
    panels[-1, 0].set_xlabel("ms after backward began; dotted: gradient 0 generated; solid: next backward begins")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
