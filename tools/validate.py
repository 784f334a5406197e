"""Compares the simulator with real runs: the cells of configs/replay-bandwidths.yaml, and of an all-reduce run.

Rule of this file: running both, the comparison and its page; what is within bounds is said, not enforced by tuning.
`make validate` runs it, for about an hour; with --real it takes results that are there, and leaves the page alone. With
--allreduce it simulates the cells that `make allreduce` and `make eighth` have kept, in seconds, and measures nothing.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import RESULTS_FILE, read_results
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.session import run_session
from prophet_scheduler.lab.simulated_session import simulate_session
from prophet_scheduler.lab.simulator_config import SimulatorConfig
from tools import allreduce, eighth, kept, replay_page
from tools.allreduce_simulated import simulated_study
from tools.command_line import exit_status, page_parser
from tools.kept import Point, Study
from tools.markdown import table
from tools.provenance import Provenance

CONFIG = Path("configs/replay-bandwidths.yaml")
PAGE = "validation.md"
NAME = kept.VALIDATION
USUAL, WORST = 0.10, 0.20
"""Largest error of nine in ten cells, and of all."""
SHARE = 0.9

INTRODUCTION = f"""# The simulator against real runs

Made by `make validate` from `{CONFIG}`: iteration times, real ones from `prophet run` (real
BytePS on shaped veth pairs, computing replaced by sleeping), simulated ones from `prophet simulate`."""
LEFT_OUT = """What the simulator leaves out: that workers, server and network share a few cores. That shows where
messages are many."""

ALL_REDUCES = (allreduce, eighth)
"""Studies of real all-reduces: all policies are in the second, of which the first has most in few cells."""
ALL_REDUCE = f"""## All-reduces

Real ones from {" and ".join(f"`{study.COMMAND}` ([its page]({study.PAGE}))" for study in ALL_REDUCES)}, simulated ones
from `python -m tools.validate --allreduce`: the same cells as a ring
(prophet_scheduler/simulate/collectives.py) with the numbers above, and with what gloo's operations take
besides, which was [measured](operations.md) without any job. Operations in flight take turns. DDP waits for all
averages; under Prophet blocks are those that its search finds for the job's profile and the ring's cost. BytePS under
Prophet, where a cell has it, is the simulator's as above. Training for real has no profile to simulate."""
ALL_REDUCE_LEFT_OUT = """What the ring leaves out: that two operations share a link, that ranks which compute and
send at the same time share two cores, and TCP, whose window on a link with a delay opens anew after a pause."""
COLUMNS = ("cell", "policy", "real (s)", "simulated (s)", "error")


@dataclass(frozen=True)
class Compared:
    """One policy in one cell: seconds of an iteration at rest, and the error of the simulated one."""

    policy: str
    bandwidth: str
    setting: str
    real_s: float
    simulated_s: float
    error: float


@dataclass(frozen=True)
class WithinBounds:
    """Number of `cells` within 10%, the worst error as a share of 1, and the verdict."""

    cells: int
    within_10_percent: int
    worst: float | None
    good: bool


def compare(points: Sequence[Point]) -> list[Compared]:
    """Return the iteration times of both, one entry a policy and cell that ran both ways."""
    compared = []
    for point in points:
        setting = point.cell.setting
        for name, (real_s, simulated_s) in point.real_and_simulated_s.items():
            compared.append(
                Compared(
                    name,
                    describe_setting({"bandwidth": setting["bandwidth"]}),
                    describe_setting(setting),
                    real_s,
                    simulated_s,
                    simulated_s / real_s - 1,
                )
            )
    return compared


def verdict(cells: Sequence[Compared]) -> WithinBounds:
    """Return how many cells are within the bounds, and the verdict."""
    errors = [abs(cell.error) for cell in cells]
    within = sum(error <= USUAL for error in errors)
    good = bool(errors) and within >= SHARE * len(errors) and max(errors) <= WORST
    return WithinBounds(len(errors), within, max(errors, default=None), good)


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(
        INTRODUCTION,
        kept.basis(results, (NAME, *(study.NAME for study in ALL_REDUCES)), at_rest=True),
        kept.section(results, NAME, Study, "make validate", text),
        assumptions(),
        LEFT_OUT,
        kept.note(results, "validation-sources"),
        *all_reduces(results),
    )


def text(data: Study, measured: Provenance) -> str:
    """Return the page's part on BytePS."""
    return kept.joined(measured.line(), *_shown(compare(data.points)))


def all_reduces(results: Path) -> list[str]:
    """Return the page's part on all-reduces; nothing if none were measured."""
    stored = {study.COMMAND: kept.kept(results, study.NAME, Study) for study in ALL_REDUCES}
    parts, compared = [], []
    for command, each in stored.items():
        if each is not None and (cells := compare(each[1].points)):
            compared += cells
            parts += [f"`{command}`. {each[0].line()}", *_shown(cells)]
    if not any(stored.values()):
        return []
    if not compared:
        return [ALL_REDUCE, "Not simulated yet: `python -m tools.validate --allreduce`."]
    return [ALL_REDUCE, f"Together: {_said(verdict(compared))}", *parts, ALL_REDUCE_LEFT_OUT]


def _shown(cells: Sequence[Compared]) -> list[str]:
    return [f"**{_said(verdict(cells))}**", table(COLUMNS, [_row(cell) for cell in cells])]


def _row(cell: Compared) -> tuple[str, ...]:
    return cell.setting, cell.policy, f"{cell.real_s:.3f}", f"{cell.simulated_s:.3f}", f"{cell.error:+.1%}"


def assumptions() -> str:
    """Return the simulator's own numbers, as set without a config's."""
    config = SimulatorConfig()
    rows = (
        ("latency of a message", f"{config.latency_s * 1e3:g} ms", "half of the round trip of a small push"),
        (
            "overhead of a message with data",
            f"{config.overhead_s * 1e3:g} ms",
            "the order of magnitude of copying and waking threads for 128 KiB, chosen before the comparison",
        ),
        (
            "burst of a link",
            str(config.burst),
            "the testbed's own setting (prophet_scheduler/lab/testbed/shaping.py)",
        ),
        ("sizes, times, rates", "", "the config"),
    )
    return "\n\n".join(
        (
            "## Where the numbers of the simulator come from",
            "None is fitted to an iteration time.",
            table(("", "value", "source"), rows),
        )
    )


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 0 if the simulator is within the bounds, 1 if it is not, 2 for an error of the user's."""
    parser = page_parser("validate", __doc__)
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for the runs and validation.json")
    parser.add_argument("--real", type=Path, help="results.json of a `prophet run` of the config")
    parser.add_argument("--repeats", type=int, help="of the real runs, in place of the config's")
    parser.add_argument("--allreduce", action="store_true", help="simulate all-reduces that are kept, alone")
    options = parser.parse_args(arguments)
    if options.allreduce:
        return exit_status(lambda: validate_all_reduces(options.results))
    return exit_status(
        lambda: validate(options.config, options.out, options.real, options.repeats, results=options.results)
    )


def validate(
    config: Path, out: Path, real: Path | None, repeats: int | None = None, *, results: Path = kept.RESULTS
) -> int:
    """Run what is needed, print the table, and write `out`/validation.json and the page. Returns an exit status.

    If `real` results are taken, nobody knows when and where they were measured, so there is no page.
    """
    experiment = load_experiment(config, repeats=1)
    simulate_session(experiment, out / "validation-simulated")
    simulated = read_results(out / "validation-simulated" / RESULTS_FILE)
    if real is None:
        run_session(load_experiment(config, repeats=repeats), out / "validation-real")
    measured = read_results(real or out / "validation-real" / RESULTS_FILE)
    if [cell.setting for cell in measured.cells] != [cell.setting for cell in simulated.cells]:
        raise UserError("validate: the real results are of another config; run it without --real")
    data = kept.study_of(experiment, measured, simulated)
    cells = compare(data.points)
    summary = verdict(cells)
    content = {"schema": 1, **dataclasses.asdict(summary), "count": summary.cells}
    content["cells"] = [dataclasses.asdict(cell) for cell in cells]
    (out / "validation.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if real is None:
        kept.publish(results, NAME, Study, data, PAGE, page, replaces=(replay_page.BANDWIDTHS,))
        kept.write_page(results, replay_page.PAGE, replay_page.page)  # which has these runs, too
    _print(cells, summary)
    return 0 if summary.good else 1


def validate_all_reduces(results: Path) -> int:
    """Simulate the kept cells of ALL_REDUCES, keep the results with them and write the page. Returns an exit status."""
    cells: list[Compared] = []
    for study in ALL_REDUCES:
        stored = kept.kept(results, study.NAME, Study)
        if stored is not None:
            measured, data = stored
            data = simulated_study(data)
            kept.keep(results, study.NAME, Study, data, measured)
            cells += compare(data.points)
    if not cells:
        missing = kept.data_file(results, allreduce.NAME)
        raise UserError(f"{missing} is missing; measure first: {allreduce.COMMAND}")
    kept.write_page(results, PAGE, page)
    summary = verdict(cells)
    _print(cells, summary)
    return 0 if summary.good else 1


def _said(summary: WithinBounds) -> str:
    worst = "" if summary.worst is None else f"; the worst is {summary.worst:.1%} off"
    return f"{summary.within_10_percent} of {summary.cells} cells are within {USUAL:.0%}{worst}."


def _print(cells: Sequence[Compared], summary: WithinBounds) -> None:
    shown = Table("setting", "policy", "real s", "simulated s", "error")
    for cell in cells:
        shown.add_row(*_row(cell))
    console = Console()
    console.print(shown)
    console.print(_said(summary))


if __name__ == "__main__":
    sys.exit(main())
