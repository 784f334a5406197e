"""What `prophet advise` predicts, beside real runs with the change made: six recorded jobs and their page.

Rule of this file: which pairs of configs/profiles/advise.yaml are compared, and the page docs/results/advice.md.
`make advice` runs it, for about 20 minutes on a quiet machine; it can be interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_size
from prophet_scheduler.lab.advice import advise
from prophet_scheduler.lab.advice_record import Advice, Suggestion
from prophet_scheduler.lab.advice_sources import of_run
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.iterations import AT_REST, MEDIANS
from prophet_scheduler.lab.records import RESULTS_FILE, read_results
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.simulator_error import prediction_error
from tools import kept
from tools.cells import measured, study_main
from tools.markdown import table
from tools.provenance import Provenance

CONFIG = Path("configs/profiles/advise.yaml")
PAGE = "advice.md"
NAME = "advice"
COMMAND = "make advice"
CHANGES = ("twice-the-rate", "half-precision", "another-server", "prophet", "larger-batch", "ddp")
"""Change from the first to the second cell, by pair of the config's cells."""
NEAR = 0.10
"""Largest error of a near prediction; five of six are to be near."""

INTRODUCTION = f"""# What was advised, and what came of it

Made by `{COMMAND}` from `{CONFIG}`. Each job was run for real, `prophet advise`
was asked about that run, and the job was run once more with the change made. Real here: the engines, the gradients, the
network (shaped veth pairs on one machine); computing is sleeping, by profiles recorded in training; that of the *larger
batch* takes twice as long."""
COLUMNS = ("job", "change", "as it is (s)", "predicted (s)", "real (s)", "off", "predicted without the run (s)")


@dataclass(frozen=True)
class Followed:
    """Advice that was followed. Times are seconds an iteration.

    `uncalibrated_s` is what the simulator says alone, without the first run's measured time.
    """

    job: str
    change: str
    words: str
    now_s: float
    predicted_s: float
    uncalibrated_s: float
    real_s: float
    helped: bool
    """True if it was said to help."""

    @property
    def off(self) -> float:
        """Distance of the real time from the predicted one, as a share of that."""
        return self.real_s / self.predicted_s - 1


@dataclass(frozen=True)
class Advised:
    """All followed advice."""

    rows: Sequence[Followed]
    at_rest: bool = False
    """True if times are means at rest. Older measurements have medians."""


def followed(out: Path, number: int, change: str) -> Followed:
    """Return the pair of that number, of the runs in `out`. Raises UserError."""
    before, after = out / f"cell{2 * number}", out / f"cell{2 * number + 1}"
    situation, measured_s = of_run(before)
    advice = advise(situation, measured_s, error_of=prediction_error)
    plain = advise(situation, error_of=prediction_error)
    suggestion = _suggestion(advice, change)
    (cell,) = read_results(after / RESULTS_FILE).cells
    (real,) = cell.policies.values()
    if real.rest_s is None:
        raise UserError(f"{after}: the changed job failed ({real.error}); run it again")
    profile, bandwidth = situation.profile, {"bandwidth": situation.cell.setting["bandwidth"]}
    return Followed(
        job=f"{profile.name}, {format_size(profile.total_bytes)}, {describe_setting(bandwidth)}, "
        f"{advice.workers} workers, {advice.policy}",
        change=change,
        words=suggestion.words,
        now_s=measured_s,
        predicted_s=suggestion.iteration_s,
        uncalibrated_s=_suggestion(plain, change).iteration_s,
        real_s=real.rest_s,
        helped=suggestion.helps,
    )


def _suggestion(advice: Advice, change: str) -> Suggestion:
    suggestion = next((each for each in advice.suggestions if each.change == change), None)
    if suggestion is None:
        raise UserError(f"{change} is nothing that could be advised for {advice.job} under {advice.policy}")
    return suggestion


def page(results: Path) -> str:
    """Return the page, made from the kept data."""
    return kept.joined(INTRODUCTION, kept.section(results, NAME, Advised, COMMAND, text))


def text(data: Advised, provenance: Provenance) -> str:
    """Return the results: how near the predictions are, and a row for each."""
    near = sum(abs(row.off) <= NEAR for row in data.rows)
    worst = max(abs(row.off) for row in data.rows)
    said = f"**{near} of {len(data.rows)} predictions are within {NEAR:.0%}; the worst is {worst:.1%} off.**"
    basis = AT_REST if data.at_rest else MEDIANS
    return kept.joined(f"{provenance.line()} {basis}", said, table(COLUMNS, [_row(row) for row in data.rows]))


def _row(row: Followed) -> tuple[str, ...]:
    return (
        row.job,
        row.words,
        f"{row.now_s:.3f}",
        f"{row.predicted_s:.3f}",
        f"{row.real_s:.3f}",
        f"{row.off:+.1%}",
        f"{row.uncalibrated_s:.3f}",
    )


def write_page(config: Path, out: Path, results: Path, repeats: int | None) -> int:
    """Run what is missing, advise, keep the results and write the page. Returns an exit status.

    Raises UserError and OSError.
    """
    cells = len(load_experiment(config).cells)
    if cells != 2 * len(CHANGES):
        raise UserError(f"{config}: it has {cells} cells; {2 * len(CHANGES)} are wanted, a pair for each change")
    console = Console()
    measured(config, out, repeats, console)
    rows = [followed(out, number, change) for number, change in enumerate(CHANGES)]
    kept.publish(results, NAME, Advised, Advised(rows, at_rest=True), PAGE, page)
    return 0 if sum(abs(row.off) <= NEAR for row in rows) >= len(rows) - 1 else 1


def main(arguments: list[str] | None = None) -> int:
    """Return exit status 1 if more than one prediction is not near, 2 for an error of the user's."""
    return study_main("advise", __doc__, CONFIG, write_page, arguments)


if __name__ == "__main__":
    sys.exit(main())
