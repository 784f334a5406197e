"""Numbers of the pages of results that must be computed from the data, and tables whose columns depend on it.

Rule of this file: from kept values to numbers, rows and Markdown tables; no sentences. Times are seconds. A policy is
faster than another if its iterations are shorter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from prophet_mlfabric.studies.tables import PAPER_TABLE_2, RingComparison
from prophet_scheduler.core.bound import blocks_bound_s
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.core.steps import Step, find_steps
from prophet_scheduler.core.units import format_size, parse_size
from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.config import Cell
from prophet_scheduler.lab.iterations import Times, counted, rests_from, times_of
from prophet_scheduler.lab.narrow_link import seconds_per_bit
from prophet_scheduler.lab.records import CellResult, ConvergenceResult, PolicyResult
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.learn.profiler import WARM_UP
from prophet_scheduler.models.profiles import load_profile
from prophet_scheduler.simulate.cluster import MESSAGES_TO_ANSWER
from tools.kept import Point, Study

Pair: TypeAlias = tuple[ConvergenceResult | None, ConvergenceResult | None]
"""Results of a contender in one cell, real and simulated."""
DDP = engines()["ddp"]
STOCK, OURS = DDP.stock, DDP.called_here("prophet")
"""Names of unmodified DDP and of DDP under Prophet."""
FIRST_PLAN = 2 * WARM_UP
"""Iterations until the first plan."""
P10_TO_P90, OF_MEDIAN = 2.563, 1.2533
"""Of a normal distribution: p90 - p10 in standard deviations; standard error of the median over that of the mean."""


def joined(text: str) -> str:
    """Return a page's text with at most one empty line between its parts."""
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with a header, ending in a newline."""
    lines = ["| " + " | ".join(row) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:], ""])


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
    several = list(values)
    if not several:
        return "-"
    least, most = format(min(several), form), format(max(several), form)
    return least if least == most else f"{least} to {most}"


def fastest_other(cell: CellResult, name: str) -> tuple[str, float]:
    """Return the fastest policy of a cell other than `name`, and its time. Raises ValueError if there is none."""
    return min(((other, time_s) for other, time_s in cell.times_s.items() if other != name), key=lambda pair: pair[1])


def policies(cells: Iterable[CellResult]) -> list[str]:
    return list(dict.fromkeys(name for cell in cells for name in cell.policies))


def of_bound(cell: CellResult, name: str) -> str:
    """Return a policy's time at rest as a multiple of the lower bound, or in seconds if none is known."""
    policy = cell.policies.get(name)
    if policy is None or policy.rest_s is None:
        return "-" if policy is None else "failed"
    return f"{policy.rest_s / cell.lower_bound_s:.3f}" if cell.lower_bound_s else f"{policy.rest_s:.3f} s"


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


class Standing(NamedTuple):
    """Prophet in one cell: its time, stock's, that of the best choice by hand, and the fastest other contender.

    `of_bound` is its time as a multiple of the lower bound, `over_*` are speedups over the others, and `ahead*` its
    leads as shares of their times, negative if it is slower. `error` is the standard error of `ahead`.
    """

    cell: CellResult
    ours_s: float
    stock_s: float | None
    best: str
    best_s: float
    other: str | None
    of_bound: float | None
    over_stock: float | None
    over_best: float
    ahead: float
    ahead_of_other: float | None
    error: float = 0.0


def standing(cell: CellResult, ours: str, stock: str, by_hand: Callable[[str], bool]) -> Standing | None:
    """Compare Prophet with the others in a cell; None if it, or every choice by hand, was not measured."""
    times, bound_s = cell.times_s, cell.lower_bound_s
    chosen = [name for name in times if by_hand(name)]
    others = [name for name in times if name not in {*chosen, ours, stock}]
    if ours not in times or not chosen:
        return None
    best, other = min(chosen, key=times.__getitem__), min(others, key=times.__getitem__, default=None)
    return Standing(
        cell,
        times[ours],
        times.get(stock),
        best,
        times[best],
        other,
        of_bound=times[ours] / bound_s if bound_s is not None else None,
        over_stock=speedup(times, ours, stock),
        over_best=times[best] / times[ours],
        ahead=1 - times[ours] / times[best],
        ahead_of_other=None if other is None else 1 - times[ours] / times[other],
    )


def ddp_standings(cells: Iterable[CellResult], ours: str = OURS, stock: str = STOCK) -> list[Standing]:
    """Compare Prophet with DDP at its best bucket size, in each cell in which both were measured."""
    both = (cell for cell in cells if stock in cell.times_s)
    rows = (standing(cell, ours, stock, lambda name: name == stock or name.startswith(f"{stock}-")) for cell in both)
    return [row for row in rows if row is not None]


def block_standings(study: Study, ours: str = "prophet", stock: str = "stock") -> list[Standing]:
    """Compare Prophet with the best fixed size and the fastest other, in each cell with Prophet and a fixed size."""
    rows = []
    for place, point in study.configured():
        row, job = standing(point.cell, ours, stock, lambda name: name.startswith("fixed-")), place.job
        if row is not None:
            both = [error_s(point.cell.policies[name], job.iterations - 1 - job.warmup) for name in (ours, row.best)]
            rows.append(row._replace(error=math.hypot(*both) / row.best_s))
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


class Gain(NamedTuple):
    """Prophet in one simulated cell: its lead over the best fixed size and the best other, as shares of their times.

    `of_bound` has all times as multiples of the lower bound, and `any_blocks` is the bound for any cut as such a
    multiple; `possible` is the largest lead that any cut could have over the best fixed size.
    """

    cell: CellResult
    over_fixed: float
    over_other: float
    of_bound: dict[str, float]
    any_blocks: float | None
    possible: float | None


def block_gains(study: Study, ours: str = "prophet") -> list[Gain]:
    """Return the gain of each cell in which Prophet, a fixed size and another policy ran."""
    rows = []
    for place, point in study.configured():
        cell = point.cell
        bound_s, least_s = cell.lower_bound_s, any_blocks_s(place)
        times = {name: rest_s / bound_s for name, rest_s in cell.rests_s.items()} if bound_s else {}
        fixed = [seconds for name, seconds in times.items() if name.startswith("fixed-")]
        others = [seconds for name, seconds in times.items() if not name.startswith("fixed-") and name != ours]
        if ours not in times or not fixed or not others:
            continue
        any_blocks = None if least_s is None or bound_s is None else least_s / bound_s
        possible = None if any_blocks is None else 1 - any_blocks / min(fixed)
        own = times[ours]
        rows.append(Gain(cell, 1 - own / min(fixed), 1 - own / min(others), times, any_blocks, possible))
    return rows


def any_blocks_s(cell: Cell) -> float | None:
    """Return the bound for any cut in a cell. None unless it has a profile and workers' uplinks are the bottleneck."""
    links = seconds_per_bit(cell.cluster)
    if cell.wire is None or "worker uplink" not in links:
        return None
    costs = cell.simulator
    rate = 1 / links["worker uplink"] / 8
    return blocks_bound_s(cell.wire, rate, costs.overhead_s, MESSAGES_TO_ANSWER * costs.latency_s)


class Compared(NamedTuple):
    """One policy in one cell: real and simulated seconds of an iteration at rest, and the latter's relative error."""

    policy: str
    setting: str
    real_s: float
    simulated_s: float
    error: float
    near: bool
    """True if the error is at most 10%."""


def compared(points: Iterable[Point]) -> list[Compared]:
    """Return an entry for each policy and cell that ran both really and simulated."""
    rows = []
    for point in points:
        for name, (real_s, simulated_s) in point.real_and_simulated_s.items():
            error, setting = simulated_s / real_s - 1, describe_setting(point.cell.setting)
            rows.append(Compared(name, setting, real_s, simulated_s, error, abs(error) <= 0.10))
    return rows


def sweep_grid(cell: CellResult, prefix: str = "bytescheduler-") -> str:
    """Return the iteration times of policies PREFIX-CREDIT-PARTITION: a row per credit, a column per partition size."""
    named = {name: name.removeprefix(prefix).split("-") for name in cell.times_s if name.startswith(prefix)}
    times = {tuple(map(parse_size, sizes)): cell.times_s[name] for name, sizes in named.items()}
    credits, partitions = (sorted({sizes[place] for sizes in times}) for place in (0, 1))
    rows = [
        (format_size(credit), *(shown(times.get((credit, partition))) for partition in partitions))
        for credit in credits
    ]
    return table(("credit", *map(format_size, partitions)), rows)


def samples_per_s(cell: CellResult, workers: int, name: str) -> float | None:
    """Return one worker's samples per second at rest, as papers report them; None if the policy failed."""
    policy = cell.measured(name)
    if policy is None or policy.samples_per_s is None or policy.time_s is None or policy.rest_s is None:
        return None
    return policy.samples_per_s * policy.time_s / policy.rest_s / workers


def rate(cell: CellResult, workers: int, name: str) -> str:
    return shown(samples_per_s(cell, workers, name), ".1f", "failed")


def patterns(folder: str) -> list[tuple[Profile, Sequence[Step]]]:
    """Return the recorded profiles of a folder, each with the steps that the profiler finds in it."""
    profiles = [load_profile(path) for path in sorted(Path(folder).glob("*.json"))]
    return [(profile, find_steps(profile)) for profile in profiles]


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


WARM_UP_ITERATIONS = 100
"""Iterations after which memory growth counts: one-time allocations are done by then."""


def message_bytes(run: Mapping[str, Any], role: str, messages: int) -> float | None:
    """Return the growth in bytes per message, the slope of a line through the samples; None if there are too few."""
    warm = np.array(run["iterations"]) >= WARM_UP_ITERATIONS
    if warm.sum() < 3:
        return None
    slope = np.polyfit(np.array(run["iterations"])[warm], np.array(run["resident"][role])[warm], 1)[0]
    return float(slope) / messages


def megabytes_at(run: Mapping[str, Any], role: str, iteration: int) -> float | None:
    """Return the resident memory at the sample nearest to `iteration`; None if none is within a tenth of it."""
    iterations = run["iterations"]
    near = min(range(len(iterations)), key=lambda n: abs(iterations[n] - iteration), default=None)
    if near is None or abs(iterations[near] - iteration) > iteration / 10:
        return None
    return float(run["resident"][role][near]) / 1e6


def follows(data: Sequence[Mapping[str, Any]]) -> dict[str, float]:
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


class GpuPair(NamedTuple):
    """A job on a GPU without Prophet and with it, and the times of both."""

    runs: list[Mapping[str, Any]]
    times: list[Times]
    same_weights: str
    """`yes`, `**no**`, or `-` for runs of different lengths."""


def pairs(runs: Sequence[Mapping[str, Any]]) -> list[GpuPair]:
    """Return the jobs that ran both without Prophet and, after that, with it."""
    by_job: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        by_job.setdefault(repr(run["job"]), []).append(run)
    found = []
    for pair in by_job.values():
        if len(pair) == 2:
            first, second = both = [run["seconds"] for run in pair]
            same = "yes" if pair[0]["digest"] == pair[1]["digest"] else "**no**"
            times = [times_of([(seconds, rests_from(list(accumulate(seconds)), None))]) for seconds in both]
            found.append(GpuPair(pair, times, same if len(first) == len(second) else "-"))
    return found


Watched: TypeAlias = Mapping[str, Any]
"""Data of `make overhead`: turns, calls and counts."""


def _beside_nothing(data: Watched, variant: str, rank: int | None = None) -> list[tuple[Any, Any]]:
    """Return, by cycle and rank, the turn of `variant` and the turn of `nothing`."""
    base = {(turn["rank"], turn["cycle"]): turn for turn in data["turns"] if turn["variant"] == "nothing"}
    turns = (turn for turn in data["turns"] if turn["variant"] == variant and rank in (None, turn["rank"]))
    return [(turn, base[turn["rank"], turn["cycle"]]) for turn in turns]


def delayed(data: Watched, variant: str, key: str) -> list[float]:
    """Return, by cycle and rank, the share by which `variant` takes more than `nothing`."""
    return [turn[key] / nothing[key] - 1 for turn, nothing in _beside_nothing(data, variant)]


def watching_share(data: Watched, variant: str, rank: int, *, counted: bool) -> list[float]:
    """Return, by cycle, the processor time of watching as a share of an iteration, with calls in training's threads.

    With `counted`, the time of code that only watches; else that of Prophet's threads beyond the turn of `nothing`.
    """
    called_s = sum(call["count"] * call["call_s"] for call in data["calls"] if call["rank"] == rank)
    return [
        ((turn["watching_s"] if counted else turn["threads_s"] - nothing["threads_s"]) + called_s)
        / nothing["iteration_s"]
        for turn, nothing in _beside_nothing(data, variant, rank)
    ]


def scattered(values: Sequence[float]) -> str:
    """Return the median and its standard error, from the median absolute deviation."""
    middle = float(np.median(values))
    scatter = 1.4826 * float(np.median(np.abs(np.array(values) - middle)))
    return f"{middle:+.2%} ({1.25 * scatter / len(values) ** 0.5:.2%})"


def beside_judge(rows: Iterable[Any]) -> list[float]:
    """Return, by family of jobs, the tuner's regret after 100 iterations over that of the rules it replaced."""
    return [row.tuner.regret[1] / row.judge.regret[1] for row in rows if row.judge]
