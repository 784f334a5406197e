"""Predictions of `prophet advise` for six recorded jobs, compared with real runs with the change made.

Rule of this file: which pairs of configs/profiles/advise.yaml are compared. `make advice` runs it; it takes about 20
minutes on a quiet machine and can be interrupted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.units import format_size
from prophet_scheduler.lab.advice import Situation, advise
from prophet_scheduler.lab.config import load_experiment
from prophet_scheduler.lab.records import RESULTS_FILE, Advice, Suggestion, read_results, read_status
from prophet_scheduler.lab.results_view import describe_setting
from prophet_scheduler.lab.runs import STATUS_FILE, WORKER
from tools.studies import measured

CONFIG = Path("configs/profiles/advise.yaml")
CHANGES = ("twice-the-rate", "half-precision", "another-server", "prophet", "larger-batch", "ddp")
"""Change from the first to the second cell, for each pair of the config's cells."""


def followed(out: Path, number: int, change: str) -> dict[str, Any]:
    """Return the prediction and the result for pair `number` of the runs in `out`. Times are seconds per iteration.

    `uncalibrated_s` is the simulator's prediction without the first run's measured time. Raises UserError.
    """
    before, after = out / f"cell{2 * number}", out / f"cell{2 * number + 1}"
    cell = load_experiment(CONFIG).cells[2 * number]
    (contender,) = cell.policies
    measured_s = rest_s(before)
    status = before / "runs" / "cell0" / f"{contender.name}-repeat1" / f"{WORKER}.{STATUS_FILE}"
    situation = Situation(cell, contender, waits=status.exists() and read_status(status).barrier)
    advice = advise(situation, measured_s)
    suggestion = _suggestion(advice, change)
    uncalibrated = _suggestion(advise(situation), change)
    profile, bandwidth = situation.profile, {"bandwidth": situation.cell.setting["bandwidth"]}
    return {
        "job": f"{profile.name}, {format_size(profile.total_bytes)}, {describe_setting(bandwidth)}, "
        f"{advice.workers} workers, {advice.policy}",
        "change": change,
        "words": suggestion.words,
        "now_s": measured_s,
        "predicted_s": suggestion.iteration_s,
        "uncalibrated_s": uncalibrated.iteration_s,
        "real_s": rest_s(after),
    }


def rest_s(run: Path) -> float:
    """Return the time at rest of the only policy of a run with one cell. Raises UserError."""
    (cell,) = read_results(run / RESULTS_FILE).cells
    (policy,) = cell.policies.values()
    if policy.rest_s is None:
        raise UserError(f"{run}: the job failed ({policy.error}); run it again")
    return policy.rest_s


def _suggestion(advice: Advice, change: str) -> Suggestion:
    suggestion = next((each for each in advice.suggestions if each.change == change), None)
    if suggestion is None:
        raise UserError(f"{change} is not among the suggestions for {advice.job} under {advice.policy}")
    return suggestion


def measure(out: Path, results: Path) -> dict[str, Any]:
    """Run missing cells, and advise. `at_rest` marks times at rest: older data has medians. Raises UserError."""
    measured(CONFIG, out)
    return {"rows": [followed(out, number, change) for number, change in enumerate(CHANGES)], "at_rest": True}
