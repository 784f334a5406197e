"""Sentences whose numbers are computed from the results they stand under.

Rule of this file: words from values; nothing here knows a config. Faster means shorter iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results_view import describe_setting
from tools.kept import Point


def speedup(times_s: Mapping[str, float], name: str, other: str) -> float | None:
    """Return how many times as fast `name` is as `other`; None if either failed or was not run."""
    return times_s[other] / times_s[name] if {name, other} <= set(times_s) else None


def gains(points: Iterable[Point], name: str, other: str) -> list[float]:
    """Return the lead of `name` over `other` at rest in each cell that has both: 0.2 is 20%."""
    ratios = (speedup(point.cell.rests_s, name, other) for point in points)
    return [ratio - 1 for ratio in ratios if ratio is not None]


def over_bound(points: Iterable[Point], name: str) -> list[float]:
    """Return the excess of an iteration of `name` at rest over the lower bound, by cell with both: 0.2 is 20%."""
    times = [(point.cell.rests_s.get(name), point.cell.lower_bound_s) for point in points]
    return [time_s / bound_s - 1 for time_s, bound_s in times if time_s is not None and bound_s]


def span(values: Sequence[float], shown: Callable[[float], str] = "{:.0%}".format) -> str:
    """Return `12% to 46%`, or one value if the two are shown alike."""
    if not values:
        return "not measured"
    least, most = shown(min(values)), shown(max(values))
    return least if least == most else f"{least} to {most}"


def ahead(points: Sequence[Point], name: str, others: Sequence[str]) -> str:
    """Return in how many cells `name` at rest is at least as fast as all of `others`, in the words of `count`."""
    compared = [
        all((speedup(point.cell.rests_s, name, other) or 1.0) >= 1.0 for other in others)
        for point in points
        if point.cell.measured(name)
    ]
    return count(sum(compared), len(compared))


def count(some: int, whole: int) -> str:
    """Return `in every row`, `in no row`, or `in 3 of 5 rows`."""
    if some == whole and whole:
        return "in every row"
    return f"in {some} of {whole} rows" if some else "in no row"


def verdict(sentence: str, cases: Iterable[str]) -> str:
    """Return `sentence`, and below it its cases, in a list."""
    listed = "\n".join(f"- {case}" for case in cases)
    return f"**{sentence}**\n\n{listed}" if listed else f"**{sentence}**"


def without_prophet(cell: CellResult) -> list[str]:
    """Return the policies of a cell in whose processes there was no Prophet, nor its agent."""
    return [name for name, policy in cell.policies.items() if name != "prophet" and policy.agent is None]


def standing(cell: CellResult, name: str, others: Sequence[str]) -> str:
    """Return how many times as fast `name` is as each of `others` in one cell, and the lead of the fastest."""
    times = cell.times_s
    ratios = {other: ratio for other in others if (ratio := speedup(times, name, other)) is not None}
    setting = describe_setting(cell.setting)
    if not ratios:
        return f"At {setting} there is nothing to compare {name} with."
    parts = ", ".join(f"{ratio:.2f} as {other}" for other, ratio in ratios.items())
    fastest = min(times, key=times.__getitem__)
    lead = times[name] / times[fastest] - 1
    best = f"{name} is the fastest of all" if fastest == name else f"the fastest is {fastest}, {lead:.1%} ahead of it"
    return f"At {setting} {name} is {parts} (times as fast); {best}."
