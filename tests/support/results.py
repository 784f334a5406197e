"""Results of experiments that nobody ran: cells and policies as results.json has them."""

from __future__ import annotations

from typing import Any

from prophet.lab.records import CellResult, PolicyResult


def policy(median_s: float = 0.9, **more: Any) -> PolicyResult:
    """One that was measured, with 100 samples a second."""
    times = {"median": median_s, "p10": 0.8, "p90": 1.0}
    return PolicyResult.model_validate({"iteration_s": times, "samples_per_s": 100.0, **more})


def failed(error: str) -> PolicyResult:
    """One that was not."""
    return PolicyResult(error=error)


def cell(**policies: PolicyResult) -> CellResult:
    """250 Mbit/s with a bound of 0.6 s; prophet is 1.9 times as fast as stock."""
    return CellResult(
        setting={"bandwidth": 250e6},
        narrow_link="worker uplink",
        lower_bound_s=0.6,
        policies=policies,
        ratios={"prophet": 1.9},
    )
