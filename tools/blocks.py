"""Blocks that adapt beside blocks of one size, simulated: the cells of configs/blocks-simulated.yaml and their page.

Rule of this file: running the config, what is counted, and the page docs/results/blocks-simulated.md. `make blocks`
runs it, for about a quarter of an hour.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.bound import blocks_bound_s
from prophet_scheduler.lab.config import Cell, experiment_of
from prophet_scheduler.lab.narrow_link import seconds_per_bit
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.simulate.cluster import MESSAGES_TO_ANSWER
from tools import kept, words
from tools.cells import simulated
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.markdown import table
from tools.provenance import Provenance

CONFIG = Path("configs/blocks-simulated.yaml")
PAGE = "blocks-simulated.md"
NAME = "blocks-simulated"
ADAPTS = "prophet"
FIXED = "fixed-"
"""Prefix of the names of Prophet with one size for all blocks."""
BEHIND, AHEAD = 0.01, 0.03
"""Targets: largest share behind the best fixed size, and the share ahead of it that is reached somewhere."""

INTRODUCTION = f"""# Blocks that adapt, simulated

Made by `make blocks` from `{CONFIG}` with Prophet's simulator: full-size models with published sizes, four workers and
four servers, the workers' links being the narrow ones, and 0.1 ms for each message. Iteration times are multiples of
the lower bound (prophet_scheduler/core/bound.py), once what learns has learned. `fixed-...` is Prophet with
`PROPHET_PARTITION_BYTES` set, and so with blocks of one size; bytescheduler has tuned its sizes by 15 short runs. *Any
blocks* is what no cut goes below, be its blocks of one size or of many, in whatever order: messages take what they
take, and a block is pulled once it has been pushed whole ([why](../decisions/blocks-of-one-size.md))."""


@dataclass(frozen=True)
class Gain:
    """Gain in one cell: how much Prophet is ahead of the best fixed size and of the best other, as shares of their
    times; below 0 if it is behind.
    """

    setting: str
    best_fixed: str
    over_fixed: float
    best_other: str
    over_other: float
    from_bound: dict[str, float]
    any_blocks: float | None = None
    """Bound of any cut, as a multiple of the lower bound; None if unknown."""

    @property
    def best_possible(self) -> float | None:
        """Share by which any cut could be ahead of the best fixed size."""
        return None if self.any_blocks is None else 1 - self.any_blocks / self.from_bound[self.best_fixed]


def gains(cells: Sequence[CellResult], leasts_s: Sequence[float | None] = ()) -> list[Gain]:
    """Return the gain of each cell in which Prophet and a fixed size ran. `leasts_s`: bound of any cut, by cell."""
    rows = []
    for cell, least_s in itertools.zip_longest(cells, leasts_s):
        bound_s = cell.lower_bound_s
        times = {name: rest_s / bound_s for name, rest_s in cell.rests_s.items()} if bound_s else {}
        fixed = {name: seconds for name, seconds in times.items() if name.startswith(FIXED)}
        others = {name: seconds for name, seconds in times.items() if name not in fixed and name != ADAPTS}
        if ADAPTS not in times or not fixed or not others:
            continue
        best, other = min(fixed, key=fixed.__getitem__), min(others, key=others.__getitem__)
        rows.append(
            Gain(
                _setting(cell),
                best,
                1 - times[ADAPTS] / fixed[best],
                other,
                1 - times[ADAPTS] / others[other],
                times,
                any_blocks=least_s / bound_s if least_s and bound_s else None,
            )
        )
    return rows


def any_blocks_s(cell: Cell) -> float | None:
    """Return the bound of any cut in a cell whose workers' links are the narrow ones; None without profile or rate."""
    links = seconds_per_bit(cell.cluster)
    if cell.wire is None or "worker uplink" not in links:
        return None
    costs = cell.simulator
    return blocks_bound_s(
        cell.wire, 1 / links["worker uplink"] / 8, costs.overhead_s, MESSAGES_TO_ANSWER * costs.latency_s
    )


def _setting(cell: CellResult) -> str:
    return f"{cell.setting['profile']} at {float(str(cell.setting['bandwidth'])) / 1e9:g} Gbit/s"


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.study_page(results, INTRODUCTION, NAME, "make blocks", text, at_rest=True)


def text(data: Study, measured: Provenance) -> str:
    """Return the simulated results: where Prophet stands, and a row for each cell."""
    leasts_s = [any_blocks_s(cell) for cell in experiment_of(data.config, CONFIG).cells]
    rows = gains([point.cell for point in data.points], leasts_s)
    names = list(rows[0].from_bound) if rows else []
    cells = [
        (
            row.setting,
            *(f"{row.from_bound[name]:.3f}" if name in row.from_bound else "failed" for name in names),
            "-" if row.any_blocks is None else f"{row.any_blocks:.3f}",
            f"{row.over_fixed:+.1%}",
            f"{row.over_other:+.1%}",
        )
        for row in rows
    ]
    columns = ("cell", *names, "any blocks", "ahead of the best size", "ahead of the best other")
    return kept.joined(measured.line("Simulated"), _said(rows), table(columns, cells))


def _said(rows: Sequence[Gain]) -> str:
    behind = [row for row in rows if row.over_fixed < -BEHIND]
    ahead = [row for row in rows if row.over_fixed >= AHEAD]
    worst = min((row.over_fixed for row in rows), default=0.0)
    best = max((row.over_fixed for row in rows), default=0.0)
    others = [row for row in rows if row.over_other < 0]
    most = max((row.best_possible for row in rows if row.best_possible is not None), default=0.0)
    return words.verdict(
        f"Of {len(rows)} cells Prophet is more than {BEHIND:.0%} behind the best fixed size in {len(behind)}, at "
        f"least {AHEAD:.0%} ahead of it in {len(ahead)} (all: {worst:+.1%} to {best:+.1%}), and behind another policy "
        f"in {len(others)}. No cut could be more than {most:.1%} ahead of the best fixed size in any of them.",
        (f"{row.setting}: {row.over_other:+.1%} against {row.best_other}" for row in others),
    )


def main(arguments: list[str] | None = None) -> int:
    """Write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("blocks", __doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    options = parser.parse_args(arguments)
    return exit_status(lambda: write_page(options.config, options.results))


def write_page(config: Path, results: Path) -> int:
    """Simulate the config, keep the results and write the page. Raises UserError and OSError."""
    kept.publish(results, NAME, Study, simulated(config, Console(stderr=True)), PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
