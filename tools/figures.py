"""Numbers of the pages of results that must be computed from the data.

Rule of this file: from kept values to numbers and rows; no sentences. Times are seconds. A policy is
faster than another if its iterations are shorter. A row is a dictionary, whose keys templates use.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from prophet_mlfabric.studies.tables import PAPER_TABLE_2, RingComparison
from prophet_scheduler.core.bound import blocks_bound_s
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.iterations import counted, rests_from, times_of
from prophet_scheduler.lab.narrow_link import seconds_per_bit
from prophet_scheduler.lab.records import CellResult, ConvergenceResult, PolicyResult
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.simulate.cluster import MESSAGES_TO_ANSWER
from tools.kept import Point, Study

Row: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[ConvergenceResult | None, ConvergenceResult | None]
"""Results of a contender in one cell, real and simulated."""
STOCK, OURS = engines()["ddp"].stock, engines()["ddp"].called_here("prophet")
"""Names of unmodified DDP and of DDP under Prophet."""
P10_TO_P90, OF_MEDIAN = 2.563, 1.2533
"""p90 - p10 in standard deviations, and the median's standard error over the mean's, of a normal distribution."""


def joined(text: str) -> str:
    """Return a page's text with at most one empty line between its parts."""
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def shown(value: float | None, form: str = ".3f", unknown: str = "-") -> str:
    """Return a number in this format, or `unknown`."""
    return unknown if value is None else format(value, form)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return this percentile of the values; nan without values."""
    return float(np.percentile(values or [np.nan], percent))


def speedup(times_s: Mapping[str, float], name: str, other: str) -> float | None:
    """Return the time of `other` over that of `name`; None if either failed or was not run."""
    return times_s[other] / times_s[name] if {name, other} <= set(times_s) else None


def gains(points: Iterable[Point], name: str, other: str) -> list[float]:
    """Return the lead of `name` over `other` at rest in each cell that has both: 0.2 is 20%."""
    ratios = (speedup(point.cell.rests_s, name, other) for point in points)
    return [ratio - 1 for ratio in ratios if ratio is not None]


def span(values: Iterable[float], form: str = ".0%") -> str:
    """Return the range such as `12% to 46%`, or one value if both ends are formatted alike."""
    ends = sorted(values)
    return " to ".join(dict.fromkeys([format(ends[0], form), format(ends[-1], form)])) if ends else "-"


def fastest_other(cell: CellResult, name: str) -> tuple[str, float]:
    """Return the fastest policy of a cell other than `name`, and its time. Raises ValueError if there is none."""
    return min(((other, time_s) for other, time_s in cell.times_s.items() if other != name), key=lambda pair: pair[1])


def policies(cells: Iterable[CellResult]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell.policies))


def same_weights(points: Iterable[Point], only: str | None = None) -> list[bool]:
    """Return if final weights were stock's, in each cell with two workers: of `only`, or of all policies but stock."""
    results = [
        policy.same_weights_as_stock
        for point in points
        if point.workers == 2
        for name, policy in point.cell.policies.items()
        if (name == only if only else not name.startswith("stock"))
    ]
    return [same for same in results if same is not None] if only else [bool(same) for same in results]


def standing(cell: CellResult, ours: str, stock: str, by_hand: Callable[[str], bool]) -> Row | None:
    """Compare Prophet in a cell with stock, the best choice by hand, and the fastest other contender.

    Times are in seconds, `over_*` are speedups, `ahead*` leads as shares of the others' times. None if Prophet, or
    every choice by hand, was not measured.
    """
    times = cell.times_s
    chosen = [name for name in times if by_hand(name)]
    if ours not in times or not chosen:
        return None
    others = [name for name in times if name not in {*chosen, ours, stock}]
    best, other = min(chosen, key=times.__getitem__), min(others, key=times.__getitem__, default=None)
    return {
        "cell": cell,
        "ours_s": times[ours],
        "stock_s": times.get(stock),
        "best": best,
        "best_s": times[best],
        "other": other,
        "of_bound": times[ours] / cell.lower_bound_s if cell.lower_bound_s is not None else None,
        "over_stock": speedup(times, ours, stock),
        "over_best": times[best] / times[ours],
        "ahead": 1 - times[ours] / times[best],
        "ahead_of_other": None if other is None else 1 - times[ours] / times[other],
    }


def ddp_standings(cells: Iterable[CellResult], ours: str = OURS, stock: str = STOCK) -> list[Row]:
    """Compare Prophet with DDP at its best bucket size, in each cell in which both were measured."""
    both = (cell for cell in cells if stock in cell.times_s)
    rows = (standing(cell, ours, stock, lambda name: name == stock or name.startswith(f"{stock}-")) for cell in both)
    return [row for row in rows if row is not None]


def block_standings(study: Study, ours: str = "prophet", stock: str = "stock") -> list[Row]:
    """Compare Prophet with the best fixed size and the fastest other, in each cell with Prophet and a fixed size.

    `error` is the standard error of `ahead`.
    """
    rows = []
    for place, point in study.configured():
        row, job = standing(point.cell, ours, stock, lambda name: name.startswith("fixed-")), place.job
        if row is not None:
            names = (ours, row["best"])
            both = [error_s(point.cell.policies[name], job.iterations - 1 - job.warmup) for name in names]
            rows.append({**row, "error": math.hypot(*both) / row["best_s"]})
    return rows


def error_s(result: PolicyResult, after_warmup: int) -> float:
    """Return the standard error of an iteration's mean time, assuming independent iterations.

    If only a median was kept, of `after_warmup` iterations per repeat, times are assumed to be normally distributed.
    """
    if result.iterations:
        times_s = [time_s for run in result.iterations_s() for time_s in counted(run)]
        return float(np.std(times_s) / math.sqrt(len(times_s)))
    times = result.iteration_s
    assert times is not None
    return OF_MEDIAN * (times.p90 - times.p10) / P10_TO_P90 / math.sqrt(after_warmup * len(result.repeats))


def block_gains(study: Study, ours: str = "prophet") -> list[Row]:
    """Return Prophet's lead over the best fixed size (`over_fixed`), in each cell that simulated both.

    `of_bound` has all times as multiples of the lower bound; so is `any_blocks`, the bound for any cut.
    """
    rows = []
    for place, point in study.configured():
        bound_s, least_s = point.cell.lower_bound_s, any_blocks_s(place)
        times = {name: rest_s / bound_s for name, rest_s in point.cell.rests_s.items()} if bound_s else {}
        fixed = [time for name, time in times.items() if name.startswith("fixed-")]
        if ours in times and fixed and bound_s:
            any_blocks = None if least_s is None else least_s / bound_s
            lead = 1 - times[ours] / min(fixed)
            rows.append({"cell": point.cell, "over_fixed": lead, "of_bound": times, "any_blocks": any_blocks})
    return rows


def any_blocks_s(cell: Cell) -> float | None:
    """Return the bound for any cut in a cell. None unless it has a profile and workers' uplinks are the bottleneck."""
    links, costs = seconds_per_bit(cell.cluster), cell.simulator
    if cell.wire is None or "worker uplink" not in links:
        return None
    rate = 1 / links["worker uplink"] / 8
    return blocks_bound_s(cell.wire, rate, costs.overhead_s, MESSAGES_TO_ANSWER * costs.latency_s)


def compared(points: Iterable[Point]) -> list[Row]:
    """Return the real and simulated seconds of an iteration at rest, for each policy and cell that ran both ways.

    `error` is the relative error, and `near` is true if it is at most 10%.
    """
    return [
        {
            **{"policy": name, "setting": describe_setting(point.cell.setting)},
            **{"real_s": real_s, "simulated_s": simulated_s},
            **{"error": simulated_s / real_s - 1, "near": abs(simulated_s / real_s - 1) <= 0.10},
        }
        for point in points
        for name, (real_s, simulated_s) in point.real_and_simulated_s.items()
    ]


def samples_per_s(cell: CellResult, workers: int, name: str) -> float | None:
    """Return one worker's samples per second at rest, as papers report them; None if the policy failed."""
    policy = cell.measured(name)
    if policy is None or policy.samples_per_s is None or policy.time_s is None or policy.rest_s is None:
        return None
    return policy.samples_per_s * policy.time_s / policy.rest_s / workers


def rate(cell: CellResult, workers: int, name: str) -> str:
    return shown(samples_per_s(cell, workers, name), ".1f", "failed")


def lost(points: Sequence[Point], name: str) -> float | None:
    """Return the share of a worker's samples per second that is lost from the first point to the last."""
    first, last = (samples_per_s(point.cell, point.workers, name) for point in (points[0], points[-1]))
    return None if first is None or last is None else 1 - last / first


def came_to(real: Mapping[str, Study], simulated: Mapping[str, Any]) -> dict[str, dict[str, Pair]]:
    """Return MLfabric's results, real and simulated, by cell such as `c1-n1` and then by contender."""
    rows = {}
    for name in sorted(simulated):
        policies = real[name].cells[0].policies if name in real else {}
        contenders = simulated[name].contenders
        rows[name] = {
            policy: (policies[policy].convergence if policy in policies else None, contenders.get(policy))
            for policy in {**contenders, **policies}
        }
    return rows


def ratios(of_cell: Mapping[str, Pair], other: str, ours: str) -> list[float | None]:
    """Return the time to the target loss of `other` over that of `ours`, real and simulated: above 1 if ours leads."""
    times = [
        [each and each.time_to_loss_s for each in both] for both in zip(of_cell[ours], of_cell[other], strict=True)
    ]
    return [its / mine if mine and its else None for mine, its in times]


def nearness(cells: Mapping[str, Mapping[str, Pair]], policy: str) -> list[float]:
    """Return the simulated time of an applied update over the real one, for each cell with both."""
    pairs = [of[policy] for of in cells.values()]
    times = [(real.update_s, simulated.update_s) for real, simulated in pairs if real and simulated]
    return [simulated_s / real_s for real_s, simulated_s in times if real_s and simulated_s]


def needed(comparisons: Iterable[RingComparison], update_s: float, workers: int) -> list[float]:
    """Return, by cell, the updates per message at which MLfabric would be as fast as the ring."""
    return [comparison.needed(update_s, workers) for comparison in comparisons]


def of_paper(name: str) -> float:
    """Return the paper's ratio to the ring for a cell such as `c1-n1`."""
    compute, _, network = name.upper().partition("-")
    return PAPER_TABLE_2[compute, network]


def follows(data: Sequence[Row]) -> dict[str, float]:
    """Return the simulator's constants from measurements of gloo's all-reduces, for a machine with two cores.

    They come from small operations on a link with a delay, from many at once without one, and from large ones.
    """
    delay_s = 0.005
    plain, delayed = (
        next(one for one in data if one["way"] == {"ranks": 2, "bandwidth_bps": None, "delay_s": delay})
        for delay in (None, delay_s)
    )
    bare, late, issued = (
        {tuple(key): each_s for *key, each_s in rows}
        for rows in (plain["bare_s"], delayed["bare_s"], plain["issued_s"])
    )
    (small, _), (large, many) = min(bare), max(bare)
    rounds, small_s = 2, bare[small, many]
    return {
        # A message from rank to rank has the delays of both links.
        "ways_a_message": (late[small, 1] - bare[small, 1]) / (2 * delay_s) / rounds,
        "message_s": small_s / (2 * rounds),
        "moved_rate": rounds * large / (bare[large, many] - small_s),
        "issue_s": issued[small,] - small_s,
        **{rate: plain[rate] for rate in ("copied_rate", "renewed_rate", "updated_rate")},
    }


def pairs(runs: Sequence[Row]) -> list[Row]:
    """Return the jobs on a GPU that ran both without Prophet and, after that, with it, and the times of both."""
    by_job: dict[str, list[Row]] = {}
    for run in runs:
        by_job.setdefault(repr(run["job"]), []).append(run)
    rows = []
    for pair in by_job.values():
        if len(pair) == 2:
            first, second = both = [run["seconds"] for run in pair]
            same = "yes" if pair[0]["digest"] == pair[1]["digest"] else "**no**"
            times = [times_of([(seconds, rests_from(list(accumulate(seconds)), None))]) for seconds in both]
            rows.append({"runs": pair, "times": times, "same_weights": same if len(first) == len(second) else "-"})
    return rows


def _beside_nothing(data: Row, variant: str, rank: int) -> list[tuple[Row, Row]]:
    """Return, by cycle, a rank's turn of `variant` and the turn of `nothing`, from data of `make watching`."""
    base = {(turn["rank"], turn["cycle"]): turn for turn in data["turns"] if turn["variant"] == "nothing"}
    turns = (turn for turn in data["turns"] if turn["variant"] == variant and turn["rank"] == rank)
    return [(turn, base[turn["rank"], turn["cycle"]]) for turn in turns]


def watching_share(data: Row, variant: str, rank: int) -> list[float]:
    """Return, by cycle, the processor time of code that only watches, with calls in the threads of training, as a
    share of an iteration of the turn of `nothing`.
    """
    called_s = sum(call["count"] * call["call_s"] for call in data["calls"] if call["rank"] == rank)
    return [
        (turn["watching_s"] + called_s) / nothing["iteration_s"]
        for turn, nothing in _beside_nothing(data, variant, rank)
    ]


def scattered(values: Sequence[float]) -> str:
    """Return the median and its standard error, from the median absolute deviation."""
    middle = float(np.median(values))
    scatter = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return f"{middle:+.2%} ({1.25 * scatter / len(values) ** 0.5:.2%})"
