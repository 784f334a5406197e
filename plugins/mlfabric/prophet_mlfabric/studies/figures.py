"""Figures of the MLfabric simulation: loss over virtual time for several delay bounds.

Rule of this file: drawing; the numbers come from training.py's values. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from prophet_mlfabric.studies.training import Trained
from prophet_scheduler.core.optional import need_pyplot, save_figure


def draw_loss_curves(curves: Mapping[int | None, Trained], least_loss: float, path: Path) -> None:
    """Excess loss over virtual seconds and over applied updates, one line a delay bound (figures 7a and 7b's axes)."""
    pyplot = need_pyplot()
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
    save_figure(figure, path)
    pyplot.close(figure)
