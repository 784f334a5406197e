"""Tables of measurements on real engines: policies of a cell, samples a second beside the paper's, costs.

Rule of this file: from cells to Markdown; real_studies.py decides which tables a config has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.steps import find_steps
from prophet_scheduler.lab.iterations import time_columns
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results_view import describe_setting
from tools.kept import Point
from tools.markdown import shown, table

Row = tuple[str, ...]

PATTERN_STEPS = 8
"""Steps of a pattern that are spelled out."""


def policy_table(cell: CellResult, stock: str) -> str:
    """Return all policies of one cell: seconds an iteration, against stock and the bound, and gradients' time away."""
    bound = cell.lower_bound_s
    headings, rows = time_columns([policy.iteration_s for policy in cell.policies.values()])
    shown_rows: list[Row] = []
    for (name, policy), times in zip(cell.policies.items(), rows, strict=True):
        time_s, gradient = policy.time_s, policy.gradient
        shown_rows.append(
            (
                name,
                *(times if time_s is not None else [f"failed: {policy.error}", *times[1:]]),
                shown(policy.samples_per_s, ".1f"),
                shown(cell.ratios.get(name), ".2f"),
                shown(None if bound is None or time_s is None else time_s / bound, ".2f"),
                shown(None if gradient is None else gradient.total_s * 1e3, ".0f"),
                shown(policy.accuracy, ".1%"),
            )
        )
    columns = ("policy", *headings, "samples/s", f"times as fast as {stock}", "of the bound")
    return table((*columns, "gradient away (ms)", "accuracy"), shown_rows)


def all_cells(points: Sequence[Point], stock: str = "stock") -> str:
    """Return a table for each cell, each naming its narrow link. `stock` is the name of the engine's own policy."""
    parts = []
    for cell in (point.cell for point in points):
        bound = "" if cell.lower_bound_s is None else f"; lower bound {cell.lower_bound_s:.3f} s"
        parts.append(f"{describe_setting(cell.setting)}; narrow link: {cell.narrow_link}{bound}\n")
        parts.append(policy_table(cell, stock))
    return "\n".join(parts)


def by_profile(points: Sequence[Point]) -> str:
    """Return the seconds of an iteration, a row for each replayed profile."""
    names = list(points[0].cell.policies)
    rows = []
    for cell in (point.cell for point in points):
        bound = cell.lower_bound_s
        row = [str(cell.setting["profile"]), str(cell.narrow_link), shown(bound)]
        rows.append((*row, *(seconds(cell, name) for name in names)))
    return table(("profile", "narrow link", "bound (s)", *(f"{name} (s)" for name in names)), rows)


def by_setting(points: Sequence[Point]) -> str:
    """Return the seconds of an iteration, a row for each setting, and prophet's beside the bound and the best other."""
    names = list(points[0].cell.policies)
    rows = []
    for cell in (point.cell for point in points):
        bound, others = cell.lower_bound_s, cell.times_s
        ours_s = others.pop("prophet", None)
        of_bound = "-" if bound is None or ours_s is None else f"{ours_s / bound:.2f}"
        lead = "-" if ours_s is None or not others else f"{ours_s / min(others.values()) - 1:+.1%}"
        times_s = [seconds(cell, name) for name in names]
        rows.append((describe_setting(cell.setting), *times_s, shown(bound), of_bound, lead))
    return table(
        (
            "network, gradients",
            *(f"{name} (s)" for name in names),
            "bound (s)",
            "prophet, of the bound",
            "against the best other",
        ),
        rows,
    )


def seconds(cell: CellResult, name: str) -> str:
    """Return the seconds of an iteration under one policy."""
    time_s = cell.times_s.get(name)
    return "failed" if time_s is None else f"{time_s:.3f}"


def beside_paper(
    labels: Sequence[str],
    paper: Mapping[str, Sequence[float | None]],
    names: Mapping[str, str],
    more: Sequence[str] = (),
) -> Callable[[Sequence[Point]], str]:
    """Return one worker's samples a second beside the paper's. `names` maps the paper's policies to ours."""

    def tables(points: Sequence[Point]) -> str:
        columns = ["setting", "narrow link"]
        columns += [f"{theirs}, {whose}" for theirs in names for whose in ("paper", "here")] + [
            f"{n} with Prophet's partitions, here" for n in more
        ]
        rows = []
        for place, (label, point) in enumerate(zip(labels, points, strict=True)):
            row = [label, str(point.cell.narrow_link)]
            for theirs, ours in names.items():
                value = paper.get(theirs, (None,) * len(labels))[place]
                row += [shown(value, "g"), rate(point.cell, point.workers, ours)]
            rows.append((*row, *(rate(point.cell, point.workers, name) for name in more)))
        return table(columns, rows)

    return tables


def rate(cell: CellResult, workers: int, name: str) -> str:
    """Return the samples a second of one worker, as text."""
    value = samples_per_s(cell, workers, name)
    return "failed" if value is None else f"{value:.1f}"


def samples_per_s(cell: CellResult, workers: int, name: str) -> float | None:
    """Return the samples a second of one worker at rest, as papers have them; None if the policy failed."""
    policy = cell.measured(name)
    if policy is None or policy.samples_per_s is None or policy.time_s is None or policy.rest_s is None:
        return None
    return policy.samples_per_s * policy.time_s / policy.rest_s / workers


def worker_counts(points: Sequence[Point]) -> str:
    """Return real beside simulated, by the number of workers."""
    rows = []
    for point in points:
        assert point.simulated is not None
        cells = (point.cell, point.simulated)
        shares = [rate(cell, point.workers, name) for name in ("prophet", "stock") for cell in cells]
        rows.append((str(point.workers), str(point.cell.narrow_link), *shares))
    return table(
        ("workers", "narrow link", "prophet, real", "prophet, simulated", "stock, real", "stock, simulated"), rows
    )


def overheads(points: Sequence[Point]) -> str:
    """Return what Prophet itself took, and the time until the first iteration was over."""
    rows = []
    for cell in (point.cell for point in points):
        ours, stock = cell.policies.get("prophet"), cell.policies.get("stock")
        if ours is None or ours.agent is None:
            continue
        starts = [None if policy is None else policy.start_s for policy in (ours, stock)]
        share = f"{ours.agent.cpu_share:.2%}"
        rows.append((describe_setting(cell.setting), share, *(shown(start, ".1f") for start in starts)))
    return table(("setting", "agent's processor time", "start to first iteration (s)", "the same, stock"), rows)


def patterns(profiles: Sequence[Profile]) -> str:
    """Return the recorded profiles with the steps that the profiler finds in each."""
    rows = []
    for profile in profiles:
        steps = find_steps(profile)
        spans = [f"{step.first}-{step.last}" if step.last > step.first else str(step.first) for step in steps]
        pattern = " ".join(f"{{{span}}}" for span in spans[:PATTERN_STEPS])
        rows.append(
            (
                f"`{profile.name}`",
                str(len(profile.gradients)),
                f"{profile.total_bytes / 1e6:.1f}",
                f"{profile.backward_s:.3f}",
                f"{profile.forward_s:.3f}",
                str(len(steps)),
                pattern + (" ..." if len(steps) > PATTERN_STEPS else ""),
            )
        )
    return table(("profile", "gradients", "MB", "backward (s)", "forward (s)", "steps", "which"), rows)
