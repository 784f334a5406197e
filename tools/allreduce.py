"""Prophet on DistributedDataParallel, on real networks: the cells of configs/allreduce.yaml and their page.

Rule of this file: what is counted, and the page docs/results/allreduce.md. `make allreduce` runs it, for about
two and a half hours on a quiet machine: three repeats.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prophet_scheduler.engines.registry import engines
from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results_view import describe_setting
from tools import kept
from tools.cells import page_writer, study_main
from tools.kept import Point, Study
from tools.markdown import shown, table
from tools.provenance import Provenance
from tools.real_tables import all_cells
from tools.words import speedup, verdict

CONFIG = Path("configs/allreduce.yaml")
PAGE = "allreduce.md"
NAME = "allreduce"
COMMAND = "make allreduce"
DDP = engines()["ddp"]
STOCK = DDP.stock
OURS = DDP.called_here("prophet")
BYTEPS = "byteps-prophet"
"""Name of Prophet on BytePS in the config."""
BEHIND = 0.01
"""Largest share behind the best DDP."""

INTRODUCTION = f"""# Prophet on DistributedDataParallel

Made by `{COMMAND}` from `{CONFIG}`. Real here: PyTorch's DistributedDataParallel, gloo, BytePS, the
gradients, the optimizers, the network (shaped veth pairs between namespaces on one machine). In a *replay* computing is
sleeping; digits, ResNet-18 and the transformer compute for real. The narrow link is each worker's, both ways.
`{STOCK}` is DDP as it comes, `{STOCK}-5` with a `bucket_cap_mb` of 5, and `{OURS}` the same script with
`PROPHET_SCHEDULER=prophet` before it; `byteps-prophet` is BytePS under Prophet. The bound is that of an all-reduce:
with more than two ranks each sends more than a worker of BytePS does."""

COSTS = """Processor time is that of all threads of one worker in an iteration, servers not counted; in a replay, where
computing sleeps, the exchange takes it. The agent runs on the rank that learns; its part is of training's time."""
COST_COLUMNS = (
    "cell",
    "DDP, processor (s)",
    "Prophet, processor (s)",
    "BytePS under Prophet, processor (s)",
    "agent",
    "start to first iteration (s)",
    "times as fast as BytePS under Prophet",
)


@dataclass(frozen=True)
class Standing:
    """One cell: seconds an iteration of DDP as it comes, of DDP with its best bucket size, and of Prophet on it."""

    setting: str
    stock_s: float
    best: str
    best_s: float
    ours_s: float
    bound_s: float | None

    @property
    def over_stock(self) -> float:
        """Speedup over DDP as it comes."""
        return self.stock_s / self.ours_s

    @property
    def over_best(self) -> float:
        """Speedup over DDP with its best bucket size."""
        return self.best_s / self.ours_s


def standings(cells: Sequence[CellResult]) -> list[Standing]:
    """Return the standing of each cell in which Prophet and DDP as it comes were measured."""
    rows = []
    for cell in cells:
        times = cell.times_s
        ddp = {name: seconds for name, seconds in times.items() if name == STOCK or name.startswith(f"{STOCK}-")}
        if OURS not in times or STOCK not in ddp:
            continue
        best = min(ddp, key=ddp.__getitem__)
        setting = describe_setting(cell.setting)
        rows.append(Standing(setting, ddp[STOCK], best, ddp[best], times[OURS], cell.lower_bound_s))
    return rows


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.study_page(results, INTRODUCTION, NAME, COMMAND, text)


def text(data: Study, provenance: Provenance) -> str:
    """Return the measurements: where Prophet stands, and all cells."""
    rows = standings([point.cell for point in data.points])
    return kept.joined(
        provenance.line(),
        said(rows),
        summary(rows),
        weights(data.points),
        "## Every contender",
        all_cells(data.points, STOCK),
        "## What it costs",
        costs(data.points),
    )


def said(rows: Sequence[Standing]) -> str:
    """Return where Prophet stands, and the cells in which it is behind."""
    if not rows:
        return "Nothing was measured in which both ran."
    behind = [row for row in rows if row.over_best < 1 - BEHIND]
    stock, best = ([getattr(row, name) for row in rows] for name in ("over_stock", "over_best"))
    return verdict(
        f"Of {len(rows)} cells Prophet is more than {BEHIND:.0%} behind the best DDP in {len(behind)}. It is "
        f"{min(stock):.2f} to {max(stock):.2f} times as fast as DDP as it comes, and {min(best):.2f} to "
        f"{max(best):.2f} times as fast as DDP with its best bucket size, which is found by measuring each.",
        (f"{row.setting}: {row.over_best - 1:+.1%} against {row.best}" for row in behind),
    )


def summary(rows: Sequence[Standing]) -> str:
    """Return a row for each cell."""
    cells = [
        (
            row.setting,
            shown(row.bound_s),
            f"{row.stock_s:.3f}",
            f"{row.best_s:.3f} ({row.best})",
            f"{row.ours_s:.3f}",
            "-" if row.bound_s is None else f"{row.ours_s / row.bound_s:.2f}",
            f"{row.over_stock:.2f}",
            f"{row.over_best:.2f}",
        )
        for row in rows
    ]
    columns = ("cell", "bound (s)", "DDP as it comes (s)", "its best bucket size (s)", "Prophet (s)", "of the bound")
    return table((*columns, "times as fast as DDP", "as the best size"), cells)


def weights(points: Sequence[Point]) -> str:
    """Return if final weights were those of DDP as it comes, where two ranks trained for as long."""
    cells = [point.cell for point in points if point.workers == 2 and OURS in point.cell.policies]
    compared = [cell.policies[OURS].same_weights_as_stock for cell in cells]
    same, known = compared.count(True), sum(answer is not None for answer in compared)
    if not known:
        return "No final weights were compared: nowhere did both train for as long."
    where = f"all {known} cells" if same == known else f"{same} of {known} cells"
    return f"Final weights were those of DDP as it comes, bit for bit, in {where} of two ranks that train for as long."


def costs(points: Sequence[Point]) -> str:
    """Return the processor time of an iteration beside DDP's and BytePS's, the agent's part of it, and the start."""
    rows = []
    for cell in (point.cell for point in points):
        ours = cell.measured(OURS)
        if ours is None or ours.agent is None:
            continue
        used = [cell.policies[name].processor_s if name in cell.policies else None for name in (STOCK, OURS, BYTEPS)]
        faster = speedup(cell.times_s, OURS, BYTEPS) if BYTEPS in cell.policies else None
        rows.append(
            (
                describe_setting(cell.setting),
                *(shown(seconds) for seconds in used),
                f"{ours.agent.cpu_share:.2%}",
                shown(ours.start_s, ".1f"),
                shown(faster, ".2f"),
            )
        )
    return kept.joined(COSTS, table(COST_COLUMNS, rows))


write_page = page_writer(NAME, PAGE, page)


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    return study_main("allreduce", __doc__, CONFIG, write_page, arguments)


if __name__ == "__main__":
    sys.exit(main())
