"""Blocks that adapt beside blocks of one size, on real networks: the cells of configs/blocks.yaml and their page.

Rule of this file: what is counted, and the page docs/results/blocks.md. `make real-blocks` runs it, for some
two hours on a quiet machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from prophet_scheduler.lab.config import experiment_of
from prophet_scheduler.lab.iterations import counted
from prophet_scheduler.lab.records import CellResult, PolicyResult
from prophet_scheduler.lab.results_view import describe_setting
from tools import kept
from tools.blocks import ADAPTS, FIXED
from tools.cells import page_writer, study_main
from tools.kept import Study
from tools.markdown import shown, table
from tools.provenance import Provenance
from tools.real_tables import all_cells
from tools.words import verdict

CONFIG = Path("configs/blocks.yaml")
PAGE = "blocks.md"
NAME = "blocks"
COMMAND = "make real-blocks"
STOCK = "stock"
BEHIND = 0.02
"""Largest share behind the best of the fixed sizes."""
CLEARLY = 2.0
"""Standard errors behind from which on it is no matter of chance."""
P10_TO_P90, OF_MEDIAN = 2.563, 1.2533
"""Standard deviations of a normal distribution; and the error of a median over that of a mean."""

INTRODUCTION = f"""# Blocks that adapt, on real networks

Made by `{COMMAND}` from `{CONFIG}`. Real here: BytePS, MXNet's KVStore, PyTorch's gloo, the gradients, the optimizers,
the network (shaped veth pairs between namespaces on one machine). In a *replay* computing is sleeping; ResNet-18
computes for real. The narrow link is each worker's, both ways. `fixed-...` is Prophet with `PROPHET_PARTITION_BYTES`
set, and so with blocks of one size; `{ADAPTS}` has nothing set. [blocks-simulated.md](blocks-simulated.md) has larger
clusters and faster networks.

What stands behind ± is the standard error of the difference, from how much single iterations scatter. Of sizes that are
equally good the best is picked here after they were measured, so Prophet with that very size would be behind it, by
about as much."""


@dataclass(frozen=True)
class BlocksStanding:
    """One cell: seconds an iteration of Prophet, of stock, of Prophet with the best one size, and of the fastest other
    contender; None if there is none. `error`: standard error of `ahead`.
    """

    setting: str
    bound_s: float | None
    ours_s: float
    stock_s: float | None
    best: str
    best_s: float
    other: str | None
    other_s: float | None
    error: float

    @property
    def ahead(self) -> float:
        """Lead over the best one size, as a share of its time; below 0 if it is behind."""
        return 1 - self.ours_s / self.best_s

    @property
    def ahead_words(self) -> str:
        """Lead, with its standard error."""
        return f"{self.ahead:+.1%} ± {self.error:.1%}"


def error_s(result: PolicyResult, after_warmup: int) -> float:
    """Return the standard error of an iteration's mean time, as if iterations were independent.

    If nothing but medians was kept, of `after_warmup` iterations of each repeat, they are assumed normally distributed.
    """
    if result.iterations:
        times_s = [time_s for run in result.iterations_s() for time_s in counted(run)]
        return float(np.std(times_s) / math.sqrt(len(times_s)))
    times = result.iteration_s
    assert times is not None
    return OF_MEDIAN * (times.p90 - times.p10) / P10_TO_P90 / math.sqrt(after_warmup * len(result.repeats))


def standings(cells: Sequence[CellResult], after_warmup: Sequence[int]) -> list[BlocksStanding]:
    """Return the standing of each cell with Prophet and a fixed size, and its iterations after the warm-up."""
    rows = []
    for cell, count in zip(cells, after_warmup, strict=True):
        times = cell.times_s
        fixed = {name: seconds for name, seconds in times.items() if name.startswith(FIXED)}
        others = {name: seconds for name, seconds in times.items() if name not in {*fixed, ADAPTS, STOCK}}
        if ADAPTS not in times or not fixed:
            continue
        best, other = min(fixed, key=fixed.__getitem__), min(others, key=others.__getitem__, default=None)
        rows.append(
            BlocksStanding(
                describe_setting(cell.setting),
                cell.lower_bound_s,
                times[ADAPTS],
                times.get(STOCK),
                best,
                fixed[best],
                other,
                None if other is None else others[other],
                math.hypot(*(error_s(cell.policies[name], count) for name in (ADAPTS, best))) / fixed[best],
            )
        )
    return rows


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.study_page(results, INTRODUCTION, NAME, COMMAND, text)


def text(data: Study, provenance: Provenance) -> str:
    """Return the measurements: where Prophet stands, and all cells."""
    jobs = [place.job for place in experiment_of(data.config, CONFIG).cells]
    rows = standings([point.cell for point in data.points], [job.iterations - 1 - job.warmup for job in jobs])
    return kept.joined(
        provenance.line(),
        said(rows),
        summary(rows),
        "## Every contender",
        all_cells(data.points),
    )


def said(rows: Sequence[BlocksStanding]) -> str:
    """Return where Prophet stands, and the cells in which it is behind."""
    if not rows:
        return "Nothing was measured in which Prophet and a fixed size both ran."
    behind = [row for row in rows if row.ahead < -BEHIND]
    clearly = [row for row in behind if -row.ahead > CLEARLY * row.error]
    slower = [row for row in rows if row.stock_s is not None and row.ours_s > row.stock_s]
    others = [row for row in rows if row.other_s is not None and row.ours_s > row.other_s]
    cases = [f"{row.setting}: {row.ahead_words} against {row.best}" for row in behind]
    cases += [
        f"{row.setting}: takes {row.ours_s / (row.other_s or 1) - 1:.1%} longer than {row.other}" for row in others
    ]
    return verdict(
        f"Of {len(rows)} cells Prophet is more than {BEHIND:.0%} behind the best of the fixed sizes in {len(behind)} "
        f"(all: {min(row.ahead for row in rows):+.1%} to {max(row.ahead for row in rows):+.1%}), by more than two "
        f"standard errors in {len(clearly)} of them, behind stock in {len(slower)}, and behind another engine or "
        f"scheduler in {len(others)}.",
        cases,
    )


def summary(rows: Sequence[BlocksStanding]) -> str:
    """Return a row for each cell."""
    cells = [
        (
            row.setting,
            shown(row.bound_s),
            f"{row.ours_s:.3f}",
            "-" if row.bound_s is None else f"{row.ours_s / row.bound_s:.2f}",
            f"{row.best_s:.3f} ({row.best})",
            row.ahead_words,
            shown(row.stock_s),
            shown(row.other_s) if row.other is None else f"{shown(row.other_s)} ({row.other})",
        )
        for row in rows
    ]
    columns = ("cell", "bound (s)", "Prophet (s)", "of the bound", "best fixed size (s)", "ahead of it")
    return table((*columns, "stock (s)", "fastest other (s)"), cells)


write_page = page_writer(NAME, PAGE, page)


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    return study_main("real_blocks", __doc__, CONFIG, write_page, arguments)


if __name__ == "__main__":
    sys.exit(main())
