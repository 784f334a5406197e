"""What each part of Prophet is worth: the cells of two configs without one part at a time, and their page.

Rule of this file: what is counted, and the page docs/results/ablation.md. `make ablation` simulates, in some minutes;
`make real-ablation` measures, for about two hours on a quiet machine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from prophet_scheduler.lab.records import CellResult
from prophet_scheduler.lab.results_view import describe_setting
from tools import kept
from tools.cells import measured, simulated
from tools.command_line import exit_status, page_parser
from tools.kept import Study
from tools.markdown import table
from tools.provenance import Provenance

SIMULATED_CONFIG, CONFIG = Path("configs/ablation-simulated.yaml"), Path("configs/ablation.yaml")
PAGE = "ablation.md"
SIMULATED, NAME = "ablation-simulated", "ablation"
WHOLE = "prophet"
ONE_SIZE = "one-"
"""Prefix of the names of Prophet with one size for all blocks."""
MATTERS = 0.01
"""Share of an iteration below which a difference is ignored."""

INTRODUCTION = f"""# What the parts of Prophet are worth

`{WHOLE}` has nothing set. The others lack a part:

| contender | what it lacks |
|---|---|
| `order-alone` | profile and network: forward order as gradients are numbered, blocks of 512 KiB, 2 MiB in flight |
| `{ONE_SIZE}...` | the choice of blocks: all have one size; the bytes in flight are chosen |
| `no-fusion` | small gradients travel by themselves |
| `prophet-paper` | all that goes past the paper: its Algorithm 1 |
| `p3` | learning: slices of one size, one in flight |"""
TIMES = "Iteration times are multiples of the lower bound, or seconds where none is known."


def costs(cells: Sequence[CellResult]) -> dict[str, list[float]]:
    """Return by contender how much longer its iteration is than Prophet's, as a share, in each cell where both ran."""
    shares: dict[str, list[float]] = {}
    for cell in cells:
        times = cell.rests_s
        whole_s = times.get(WHOLE)
        if whole_s is None:
            continue
        for name, seconds in times.items():
            if name != WHOLE:
                shares.setdefault(name, []).append(seconds / whole_s - 1)
    return shares


def said(by_contender: dict[str, list[float]]) -> str:
    """Return the cost of lacking each part, in a list."""
    lines = []
    for name, shares in by_contender.items():
        count = sum(share > MATTERS for share in shares)
        lines.append(
            f"- `{name}`: from {min(shares):+.1%} to {max(shares):+.1%} of an iteration; more than {MATTERS:.0%} in "
            f"{count} of {len(shares)} cells."
        )
    one_size = [max(shares) for name, shares in by_contender.items() if name.startswith(ONE_SIZE)]
    if one_size:
        lines.append(f"\nThe one size that costs the least at worst costs {min(one_size):+.1%} there.")
    return "\n".join(lines) or "Nothing was measured beside the whole."


def times(cells: Sequence[CellResult]) -> str:
    """Return every contender in every cell."""
    names = list(dict.fromkeys(name for cell in cells for name in cell.policies))
    rows = [(describe_setting(cell.setting), *(_time(cell, name) for name in names)) for cell in cells]
    return table(("cell", *names), rows)


def _time(cell: CellResult, name: str) -> str:
    policy = cell.policies.get(name)
    if policy is None or policy.rest_s is None:
        return "-" if policy is None else "failed"
    return f"{policy.rest_s / cell.lower_bound_s:.3f}" if cell.lower_bound_s else f"{policy.rest_s:.3f} s"


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(
        INTRODUCTION,
        kept.basis(results, (SIMULATED, NAME), at_rest=True),
        "## Simulated",
        f"Made by `make ablation` from `{SIMULATED_CONFIG}`: full-size models, four workers and four servers. {TIMES}",
        kept.section(results, SIMULATED, Study, "make ablation", functools.partial(text, done="Simulated")),
        "## On real networks",
        f"Made by `make real-ablation` from `{CONFIG}`: real BytePS between namespaces of one machine, computing is "
        f"sleeping. {TIMES}",
        kept.section(results, NAME, Study, "make real-ablation", text),
        kept.note(results, "ablation-seen"),
    )


def text(data: Study, provenance: Provenance, done: str = "Measured") -> str:
    """Return the results of one kind of run."""
    cells = [point.cell for point in data.points]
    return kept.joined(provenance.line(done), said(costs(cells)), times(cells))


def main(arguments: list[str] | None = None) -> int:
    """Run and write the page; exit status 2 with one line for an error of the user's."""
    parser = page_parser("ablation", __doc__)
    parser.add_argument("--real", action="store_true", help="on real networks")
    parser.add_argument("--config", type=Path, help="in place of the one of that kind")
    parser.add_argument("--out", type=Path, default=Path("build/ablation"), help="folder for real runs")
    parser.add_argument("--repeats", type=int, help="in place of the config's, of real runs")
    options = parser.parse_args(arguments)
    config = options.config or (CONFIG if options.real else SIMULATED_CONFIG)
    return exit_status(lambda: write_page(config, options.real, options.out, options.results, options.repeats))


def write_page(config: Path, real: bool, out: Path, results: Path, repeats: int | None) -> int:
    """Run the config, keep its results and write the page. Raises UserError and OSError."""
    console = Console(stderr=True)
    data = measured(config, out, repeats, console) if real else simulated(config, console)
    kept.publish(results, NAME if real else SIMULATED, Study, data, PAGE, page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
