"""`make regret`: the page of what deciding costs, docs/results/regret.md.

Rule of this file: which jobs are run, and the page made of them. What a job is, and what a decider makes of it, is
regret.py's. The jobs are drawn from seeds, so the figures are the same on every machine.

Before the tuner a judge of cuts decided, by rules and thresholds. It was run on the same jobs, and its figures are kept
as they were.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from tools import kept
from tools.command_line import exit_status, page_parser
from tools.markdown import table
from tools.provenance import Provenance
from tools.regret import COUNTS, FAMILIES, NOISES, ByTuner, Figures, draw, figures, run

PAGE = "regret.md"
NAME = "regret"
JOBS = 20


@dataclass(frozen=True)
class FamilyRow:
    """One family of jobs at one noise; `judge` has the figures of the earlier rules, if kept."""

    family: str
    noise: float
    tuner: Figures
    judge: Figures | None = None


@dataclass(frozen=True)
class Regrets:
    """Data of the page."""

    jobs: int
    rows: Sequence[FamilyRow]


def measure(jobs: int, before: Sequence[FamilyRow]) -> Regrets:
    """Run all families at all noises; `before` has the judge's figures."""
    judges = {(row.family, row.noise): row.judge for row in before}
    cells = [(family, noise) for noise in NOISES for family in FAMILIES]
    rows = []
    for family, noise in track(cells, "regret"):
        found = figures(run(draw(family, noise, seed), ByTuner(family)) for seed in range(jobs))
        rows.append(FamilyRow(family.name, noise, found, judges.get((family.name, noise))))
    return Regrets(jobs, rows)


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined("# What it costs to decide", kept.section(results, NAME, Regrets, "make regret", text))


def text(data: Regrets, measured: Provenance) -> str:
    """Return the results as Markdown."""
    columns = ("jobs", *(f"after {count}" for count in COUNTS), "after a change", "rests off", "bad", "rests after")
    parts = []
    for noise in dict.fromkeys(row.noise for row in data.rows):
        rows = [row for row in data.rows if row.noise == noise]
        lines = [(row.family, *_cells(row)) for row in rows]
        parts.append(f"## Iterations that scatter by {noise:.0%}\n\n{table(columns, lines)}\n{_summary(rows)}\n")
    return f"""Made by `make regret`. {measured.line("Computed")}

Simulated: {data.jobs} jobs of each kind, drawn from seeds, with seven sizes of blocks whose true times, predictions and
noise are drawn (`tools/regret.py`). Regret is what the first iterations took beyond the best size's own time, as a
share of that, changes included; *rests off* is by how much the size that a job ends with is slower than the best, on
average and in nine of ten; *bad* are iterations at sizes that are slower by more than a tenth; *rests after* so many
iterations, a median. Each cell has the tuner's figure, then that of the rules that decided before it.

{chr(10).join(parts)}"""


def _cells(row: FamilyRow) -> list[str]:
    sides = [_figures(one) for one in (row.tuner, row.judge) if one is not None]
    return [" / ".join(both) for both in zip(*sides, strict=True)]


def _figures(one: Figures) -> list[str]:
    after = "-" if one.after_change is None else f"{one.after_change:.1%}"
    off = f"{one.rests_off:.1%}, {one.nine_of_ten:.1%}"
    return [*(f"{share:.1%}" for share in one.regret), after, off, f"{one.bad:.0f}", f"{one.until_rest:.0f}"]


def _summary(rows: Sequence[FamilyRow]) -> str:
    compared = [(row.tuner.regret[1], row.judge.regret[1], row.family) for row in rows if row.judge is not None]
    off = sum(row.tuner.rests_off for row in rows) / len(rows)
    nine = sum(row.tuner.nine_of_ten for row in rows) / len(rows)
    line = f"The tuner rests {off:.2%} off the best on average, {nine:.2%} in nine of ten jobs."
    if not compared:
        return line
    ratios = [(tuner / judge, family) for tuner, judge, family in compared]
    worst, family = max(ratios)
    mean = sum(ratio for ratio, _ in ratios) / len(ratios)
    regret = f"Its regret after {COUNTS[1]} iterations is {mean:.2f} of the rules'"
    return f"{line} {regret}, at the most {worst:.2f} ({family})."


def make(options: argparse.Namespace) -> int:
    """Run the jobs, and make the page of them. Raises UserError."""
    before = kept.kept(options.results, NAME, Regrets)
    data = measure(options.jobs, () if before is None else before[1].rows)
    kept.publish(options.results, NAME, Regrets, data, PAGE, page)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run and write; exit status 2 with one line for an error of the user's."""
    parser = page_parser("regret", __doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="of each family at each noise")
    options = parser.parse_args(arguments)
    return exit_status(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
