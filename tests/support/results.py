"""Results of experiments that nobody ran: cells and policies as results.json has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.lab.config import Experiment
from prophet_scheduler.lab.iterations import times_of
from prophet_scheduler.lab.records import CellResult, PolicyResult, Results, write_results


def policy(median_s: float = 0.9, **more: Any) -> PolicyResult:
    """Return a measured policy with this median time and 100 samples per second."""
    times = {"median": median_s, "p10": 0.8, "p90": 1.0}
    return PolicyResult.model_validate({"iteration_s": times, "samples_per_s": 100.0, **more})


def iterated(*times_s: float) -> PolicyResult:
    """Return a policy whose two workers took these times in the iterations of a repeat, after two of warm-up."""
    whole = [9.0, 9.0, *times_s]
    times = times_of([(whole, 2)])
    return policy(iteration_s=times.model_dump(exclude_none=True), iterations=[[tuple(whole)] * 2])


def failed(error: str) -> PolicyResult:
    """Return a policy whose measurement failed."""
    return PolicyResult(error=error)


def cell(**policies: PolicyResult) -> CellResult:
    """Return a cell of 250 Mbit/s with a bound of 0.6 s; prophet is 1.9 times as fast as stock."""
    return CellResult(
        setting={"bandwidth": 250e6},
        narrow_link="worker uplink",
        lower_bound_s=0.6,
        policies=policies,
        ratios={"prophet": 1.9},
    )


class Session:
    """Stand-in for run_session: every cell's results are `point`, unless `refuses` has a reason for none."""

    def __init__(self, point: CellResult) -> None:
        self.point = point
        self.refuses: dict[str, str] = {}
        self.ran: list[str] = []

    def run(self, experiment: Experiment, out: Path) -> int:
        self.ran.append(out.name)
        if out.name in self.refuses:
            raise UserError(self.refuses[out.name])
        (only,) = experiment.cells
        shown = self.point.model_copy(update={"setting": dict(only.setting)})
        out.mkdir(parents=True)
        config: Any = dict(experiment.source)
        results = Results(schema=1, config=config, repeats=experiment.repeats, cells=[shown])
        write_results(results, out / "results.json")
        return 0
