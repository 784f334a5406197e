"""The page of replays: ResNet-50's gradients on slow networks under every policy, docs/results/replay.md.

Rule of this file: the page from what is kept by replay.py, by validate.py (the rates from 100 Mbit/s to 1 Gbit/s) and
by bench.py (the queue's own figures).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prophet_scheduler.core.units import format_size, parse_size
from prophet_scheduler.lab.records import CellResult
from tools import kept
from tools.bench_history import FIGURES, history, last
from tools.kept import VALIDATION, Point, Study
from tools.markdown import table
from tools.provenance import Provenance
from tools.real_tables import all_cells, by_setting, overheads
from tools.words import standing

PAGE = "replay.md"
REPLAY, SWEEP = "replay-resnet50", "sweep-bytescheduler"
BANDWIDTHS, COSTS = "replay-bandwidths", "replay-costs"
"""Notes of sections that have no data of their own."""

INTRODUCTION = """# Real runs: ResNet-50's gradients on slow networks

Made by `make replay`. Real here: BytePS 0.2.5.post15 (CPU build), the gradients, the optimizer, the network (shaped
veth pairs between namespaces on one machine). Emulated: computing, by sleeping. The narrow link is each worker's, both
ways; the server's is not limited. All policies run on the same build of BytePS, whose faults that made jobs hang are
mended for all of them. [real.md](real.md) has other engines beside these.
"""
POLICIES_ABOUT = """`configs/replay-resnet50.yaml`: 25.6 MB of gradients in ResNet-50's proportions, 13 steps, 0.6 s
backward and 0.3 s forward, two workers and a server; interleaved repeats. `p3` and `bytescheduler` are
those policies on Prophet's own queue, front end and partitions, which is more than they have anywhere else."""
TRANSFERS = """When each gradient was on its way, in one iteration of one worker (gradients that travel as one count as
one):"""
SWEEP_ABOUT = f"""`configs/{SWEEP}.yaml` (`python -m tools.replay --sweep`): the same job under ByteScheduler with fixed
settings, seconds an iteration, by bytes in flight (rows) and partition size (columns)."""
BANDWIDTHS_ABOUT = """`configs/replay-bandwidths.yaml`, the real runs of `make validate`: seconds an iteration;
nothing is set by hand between the rates."""


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(
        INTRODUCTION,
        kept.basis(results, (REPLAY, SWEEP, VALIDATION)),
        "## 250 Mbit/s, all policies",
        POLICIES_ABOUT,
        kept.section(results, REPLAY, Study, "make replay", replayed),
        "## ByteScheduler at its best",
        SWEEP_ABOUT,
        kept.section(results, SWEEP, Study, "python -m tools.replay --sweep", swept),
        "## From 100 Mbit/s to 1 Gbit/s",
        BANDWIDTHS_ABOUT,
        kept.section(results, VALIDATION, Study, "make validate", by_bandwidth, stand_in=BANDWIDTHS),
        "## What it costs",
        kept.section(results, REPLAY, Study, "make replay", lambda data, _: overheads(data.points), stand_in=COSTS),
        queue_costs(results),
        kept.note(results, "replay-seen"),
    )


def replayed(data: Study, measured: Provenance) -> str:
    """Return all policies at one rate."""
    (point,) = data.points
    return kept.joined(
        measured.line(),
        all_cells(data.points),
        standing(point.cell, "prophet", [name for name in point.cell.policies if name != "prophet"]),
        weights(data.points),
        "![iteration times](replay-resnet50.png)",
        TRANSFERS,
        "![transfers](replay-resnet50-transfers.png)",
    )


def swept(data: Study, measured: Provenance) -> str:
    """Return ByteScheduler's settings, and Prophet beside the best of them."""
    (point,) = data.points
    return kept.joined(measured.line(), grid(point.cell), best(point.cell))


def by_bandwidth(data: Study, measured: Provenance) -> str:
    """Return all policies at several rates."""
    return kept.joined(measured.line(), by_setting(data.points))


def weights(points: Sequence[Point]) -> str:
    """Return if the final weights of all policies were stock's."""
    others = {
        name
        for point in points
        for name, policy in point.cell.policies.items()
        if name != "stock" and policy.same_weights_as_stock is not True
    }
    names = ", ".join(sorted(name for name in others if not name.startswith("stock")))
    if not names:
        return "Final weights of all policies were those of stock BytePS, bit for bit."
    return f"Final weights were not shown to be those of stock BytePS under {names}."


def settings(cell: CellResult) -> dict[tuple[str, str], str]:
    """Return the policies of a sweep by credit and partition size, in order of both."""
    names = {tuple(name.removeprefix("bytescheduler-").split("-")): name
             for name in cell.policies if name.startswith("bytescheduler-")}  # fmt: skip
    sizes = {(parse_size(credit), parse_size(partition)): name for (credit, partition), name in names.items()}
    return {
        (format_size(credit), format_size(partition)): sizes[credit, partition] for credit, partition in sorted(sizes)
    }


def grid(cell: CellResult) -> str:
    """Return the seconds of an iteration, a row for each credit and a column for each partition size."""
    by_size, times_s = settings(cell), cell.times_s
    credits = list(dict.fromkeys(credit for credit, _ in by_size))
    partitions = list(dict.fromkeys(partition for _, partition in by_size))

    def shown(credit: str, partition: str) -> str:
        name = by_size.get((credit, partition), "")
        return "-" if name not in times_s else f"{times_s[name]:.3f}"

    rows = [(credit, *(shown(credit, partition) for partition in partitions)) for credit in credits]
    return table(("credit", *partitions), rows)


def best(cell: CellResult) -> str:
    """Return Prophet, with nothing set, against the best of the settings."""
    times_s = cell.times_s
    swept = [name for name in settings(cell).values() if name in times_s]
    if not swept or "prophet" not in times_s:
        return "There is nothing to compare Prophet with."
    first = min(swept, key=times_s.__getitem__)
    ours_s, best_s = times_s["prophet"], times_s[first]
    return (
        f"Prophet, with nothing set, took {ours_s:.3f} s in the same run; the best setting, {first}, took "
        f"{best_s:.3f} s. Prophet is {best_s / ours_s - 1:+.1%} faster."
    )


def queue_costs(results: Path) -> str:
    """Return the last measurements of `make bench`, if any."""
    newest = last(history(results))
    if newest is None:
        return ""
    rows = [(words, f"{newest.figures[name]:,.10g}") for name, words in FIGURES.items() if name in newest.figures]
    return kept.joined(
        f"`make bench`: {newest.measured.line('measured')} Load average before: {newest.load:.1f}.",
        table(("", ""), rows),
    )
