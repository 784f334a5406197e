"""View of a profile: a table of its steps, and a figure of generation times by gradient.

Rule of this file: presentation. core/steps.py finds the steps.
"""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from prophet_scheduler.cli.plots import save_plot
from prophet_scheduler.core.optional import need_pyplot
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.steps import find_steps


def profile_table(profile: Profile) -> Table:
    """Return a table with a row for each step of the stepwise pattern, most urgent first."""
    steps = find_steps(profile)
    table = Table(title=f"{profile.name}: {len(profile.gradients)} gradients in {len(steps)} steps")
    for heading in ("gradients", "bytes", "generated at", "gap before", "forward"):
        table.add_column(heading, justify="right", overflow="fold")
    for step in steps:
        members = profile.gradients[step.first : step.last + 1]
        table.add_row(
            f"{step.first}-{step.last}" if step.last > step.first else str(step.first),
            f"{sum(g.size_bytes for g in members):,}",
            f"{step.time_s * 1e3:.1f} ms",
            f"{step.gap_s * 1e3:.1f} ms",
            f"{sum(g.forward_s for g in members) * 1e3:.1f} ms",
        )
    table.add_section()
    table.add_row(
        "all", f"{profile.total_bytes:,}", f"{profile.backward_s * 1e3:.1f} ms", "", f"{profile.forward_s * 1e3:.1f} ms"
    )
    return table


def plot_profile(profile: Profile, path: Path) -> None:
    """Draw generation times by gradient, like the paper's Fig. 4, with a colour for each step. Raises UserError."""
    pyplot = need_pyplot("--plot")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    colours = pyplot.get_cmap("tab20")
    for number, step in enumerate(find_steps(profile)):
        indices = range(step.first, step.last + 1)
        times = [profile.gradients[i].generation_s * 1e3 for i in indices]
        axes.scatter(list(indices), times, s=14, color=colours(number % 20))
    axes.set_xlabel("gradient (0 belongs to the first layer)")
    axes.set_ylabel("generated after backward began (ms)")
    axes.set_title(f"Stepwise pattern of {profile.name}")
    axes.grid(alpha=0.3)
    save_plot(figure, path)
    pyplot.close(figure)
