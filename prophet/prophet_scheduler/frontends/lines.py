"""Lines that show Prophet at work: one when it starts, one when the process ends.

Rule of this file: the wording, for any engine. Only the first rank prints them, unless PROPHET_QUIET is 1. Times are in
seconds, sizes in bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prophet_scheduler.core.units import format_size
from prophet_scheduler.frontends.ending import say

if TYPE_CHECKING:
    from prophet_scheduler.core.status import ArmStatus
    from prophet_scheduler.watch.status import LiveStatus, Spread


def begins(what: str, whose: str, size_bytes: float, policy: str) -> None:
    """Print that Prophet schedules `what`, and `whose`: ranks, or workers and servers. `size_bytes`: bytes sent per
    iteration.
    """
    say(f"schedules {what}, {whose}, {format_size(size_bytes)} an iteration, policy {policy}")


def ends(iterations: int, spread: Spread | None, plain: str) -> None:
    """Print how long iterations took, and `plain`, a phrase about the engine without Prophet."""
    if spread is None:
        say(f"{iterations} iterations, too few to time")
        return
    took = f"{iterations} iterations; the last {spread.count} took {_time(spread.mean_s)} on average"
    say(f"{took} (median {_time(spread.median_s)}); {plain}")


def plain_words(status: LiveStatus, engine: str, measured: ArmStatus | None = None) -> str:
    """Return a phrase with the `engine`'s time without Prophet, `measured` or else predicted, and its uncertainty."""
    agent, predicted, spread = status.agent, status.predicted, status.iteration
    if agent.stepped_aside:
        return f"{engine} has its own order: {agent.stepped_aside}"
    if agent.given_back:
        return f"{engine} then went on without Prophet, which was faster"
    if measured is not None:
        took = f"{_time(measured.believed_s)} ± {measured.error:.0%}"
        return f"{engine} without Prophet is estimated to take {took} ({measured.seen} iterations measured)"
    if predicted.stock_iteration_s is None:
        return f"how long {engine} would take without Prophet is not known yet"
    sure = ""
    if spread is not None and predicted.iteration_s is not None:
        off = predicted.iteration_s / spread.median_s - 1
        sure = f" (with Prophet the prediction is {abs(off):.0%} too {'high' if off > 0 else 'low'})"
    return f"{engine} without Prophet is predicted to take {_time(predicted.stock_iteration_s)}{sure}"


def _time(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
