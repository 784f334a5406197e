"""View of `prophet advise`: what holds a job back and what would help.

Rule of this file: a table and sentences from an Advice. It computes nothing.
"""

from __future__ import annotations

from rich.table import Table

from prophet_scheduler.lab.records import Advice
from prophet_scheduler.lab.screen import table_of


def verdict(advice: Advice) -> str:
    """Return a sentence or two that say whether the network holds the job back."""
    took = "takes" if advice.measured_s is not None else "would take"
    waits = f"an iteration {took} {advice.iteration_s:.3f} s, computing alone {advice.computing_s:.3f} s"
    if not advice.network_holds_back:
        return f"The network does not hold this job back: {waits}."
    bound = ""
    if advice.bound_s is not None:
        bound = f" No schedule on this network could take less than {advice.bound_s:.3f} s."
    return f"The network holds this job back: {waits}; {advice.waits:.0%} of it is waiting.{bound}"


def advice_table(advice: Advice) -> Table:
    """Return a table with a row for the current job and one for each change.

    A row has the predicted iteration time, the gain in samples per second, and the usual and the worst error.
    """
    where = f"{advice.workers} workers" + (f", {advice.servers} servers" if advice.servers else "")
    rows = []
    if advice.measured_s is not None:
        rows.append(["as it is, measured", f"{advice.measured_s:.3f}", "1.00", "", "", ""])
    errors = [_share(advice.error), _share(advice.worst_error)]
    rows += [["as it is, simulated", f"{advice.simulated_s:.3f}", "1.00", *errors, ""], []]
    for each in sorted(advice.suggestions, key=lambda suggestion: -suggestion.gain):
        errors, helps = [_share(each.error), _share(each.worst_error)], "yes" if each.helps else "no"
        rows.append([each.words, f"{each.iteration_s:.3f}", f"{each.gain:.2f}", *errors, helps])
    headings = ("change", "iteration s", "gain", "error", "worst", "helps")
    return table_of(headings, rows, f"{advice.job} under {advice.policy}, {where}")


def left_out(advice: Advice) -> list[str]:
    """Return a line for each assumed value, and for each cost that a prediction leaves out."""
    left = [f"{each.words}: leaves out {each.leaves_out}" for each in advice.suggestions if each.leaves_out]
    return [*advice.assumed, *left]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
