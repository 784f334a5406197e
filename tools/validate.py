"""Compares the simulator with real runs: the cells of configs/replay-bandwidths.yaml, both ways.

Rule of this file: running both, the comparison and its table; what is within bounds is said, not enforced by tuning.
`make validate` runs it, for about half an hour; with --real it takes results that are there.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from prophet.core.errors import UserError
from prophet.core.units import format_rate
from prophet.lab.config import load_experiment
from prophet.lab.results import describe_setting
from prophet.lab.session import run_session
from prophet.lab.simulated_session import simulate_session
from tools.exit_status import exit_status

USUAL, WORST = 0.10, 0.20
"""Nine of ten cells are to be within the first, all within the second."""
SHARE = 0.9


def compare(real: Mapping[str, Any], simulated: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Median iteration times of both, one entry a policy and cell. Raises UserError where the cells differ."""
    cells = []
    if [cell["setting"] for cell in real["cells"]] != [cell["setting"] for cell in simulated["cells"]]:
        raise UserError("validate: the real results are of another config; run it without --real")
    for ours, theirs in zip(real["cells"], simulated["cells"], strict=True):
        for name, policy in ours["policies"].items():
            if "iteration_s" not in policy or "iteration_s" not in theirs["policies"].get(name, {}):
                continue
            real_s, simulated_s = policy["iteration_s"]["median"], theirs["policies"][name]["iteration_s"]["median"]
            cells.append(
                {
                    "policy": name,
                    "bandwidth": format_rate(ours["setting"]["bandwidth"]),
                    "setting": describe_setting(ours["setting"]),
                    "real_s": real_s,
                    "simulated_s": simulated_s,
                    "error": simulated_s / real_s - 1,
                }
            )
    return cells


def verdict(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many cells are within the bounds, and whether that is enough."""
    errors = [abs(cell["error"]) for cell in cells]
    within = sum(error <= USUAL for error in errors)
    good = bool(errors) and within >= SHARE * len(errors) and max(errors) <= WORST
    return {"cells": len(errors), "within_10_percent": within, "worst": max(errors, default=None), "good": good}


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 where the simulator is within the bounds, 1 where it is not, 2 for an error of the user's."""
    parser = argparse.ArgumentParser(prog="python -m tools.validate", description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("configs/replay-bandwidths.yaml"))
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for validation.json")
    parser.add_argument("--real", type=Path, help="results.json of a `prophet run` of the config")
    parser.add_argument("--repeats", type=int, help="of the real runs, in place of the config's")
    given = parser.parse_args(arguments)
    return exit_status(lambda: validate(given.config, given.out, given.real, given.repeats))


def validate(config: Path, out: Path, real: Path | None, repeats: int | None = None) -> int:
    """Runs what is needed, writes `out`/validation.json and prints the table; an exit status."""
    simulate_session(load_experiment(config, repeats=1), out / "validation-simulated")
    if real is None:
        run_session(load_experiment(config, repeats=repeats), out / "validation-real")
        real = out / "validation-real" / "results.json"
    cells = compare(_read(real), _read(out / "validation-simulated" / "results.json"))
    summary = verdict(cells)
    text = json.dumps({"schema": 1, **summary, "count": summary["cells"], "cells": cells}, indent=2)
    (out / "validation.json").write_text(text + "\n", encoding="utf-8")
    _print(cells, summary)
    return 0 if summary["good"] else 1


def _read(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: cannot be read as results ({error})") from None
    return results


def _print(cells: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    table = Table("setting", "policy", "real s", "simulated s", "error")
    for cell in cells:
        numbers = (f"{cell['real_s']:.3f}", f"{cell['simulated_s']:.3f}", f"{cell['error']:+.1%}")
        table.add_row(cell["setting"], cell["policy"], *numbers)
    console = Console()
    console.print(table)
    console.print(f"{summary['within_10_percent']} of {summary['cells']} within 10%, the worst {summary['worst']:.1%}")


if __name__ == "__main__":
    sys.exit(main())
