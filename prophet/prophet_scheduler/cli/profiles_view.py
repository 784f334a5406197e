"""View of a profile: a table of its steps.

Rule of this file: presentation. core/profile.py finds the steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from prophet_scheduler.core.profile import GradientProfile, Profile, find_steps
from prophet_scheduler.lab.screen import table_of


def profile_table(profile: Profile) -> Table:
    """Return a table with a row for each step of the stepwise pattern, most urgent first."""

    def row(name: str, members: Sequence[GradientProfile], time_s: float, gap: str) -> list[str]:
        size = sum(gradient.size_bytes for gradient in members)
        return [name, f"{size:,}", _ms(time_s), gap, _ms(sum(gradient.forward_s for gradient in members))]

    steps = find_steps(profile)
    rows = []
    for step in steps:
        name = f"{step.first}-{step.last}" if step.last > step.first else str(step.first)
        rows.append(row(name, profile.gradients[step.first : step.last + 1], step.time_s, _ms(step.gap_s)))
    rows += [[], row("all", profile.gradients, profile.backward_s, "")]
    headings = ("gradients", "bytes", "generated\nat", "gap\nbefore", "forward")
    return table_of(headings, rows, f"{profile.name}: {len(profile.gradients)} gradients in {len(steps)} steps")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
