"""View of a profile: a table of its steps.

Rule of this file: presentation. core/profile.py finds the steps.
"""

from __future__ import annotations

from rich.table import Table

from prophet_scheduler.core.profile import Profile, find_steps


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
