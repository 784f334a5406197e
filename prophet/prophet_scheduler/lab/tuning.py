"""ByteScheduler's tuning in an experiment: short runs before the first repeat, then the policy with the best sizes.

Rule of this file: which trials are run and what is kept of them. The search is policies/algorithms/autotune.py;
running a trial, really or simulated, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from prophet_scheduler.core.optional import require
from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.records import TunedSizes
from prophet_scheduler.lab.runs import Run
from prophet_scheduler.policies import get_definition, variable
from prophet_scheduler.policies.algorithms.autotune import DEFAULT_INITIAL, tune

TRIAL_ITERATIONS = 10
TRIAL_WARMUP = 3
"""A trial's first iterations, which are not counted: the job starts, and a broadcast may still be under way."""

RunOnce = Callable[[Cell, Contender, str, int], Run]
"""(cell, policy, label, number of the repeat from 0) -> how it went."""


class TrialFailed(Exception):
    """A trial did not come to its end; the message is one line."""


@dataclass(frozen=True)
class Tuned:
    """A policy with the sizes that were best; `record` is for results.json, None where nothing was tuned."""

    policy: Contender
    record: TunedSizes | None = None


def tune_policy(cell: Cell, policy: Contender, run: RunOnce) -> Tuned:
    """Runs `policy.tune` trials of `cell`'s job, cut short. Raises TrialFailed where one fails."""
    short = trial_cell(cell)
    count = 0

    def evaluate(credit_bytes: int, partition_bytes: int) -> float:
        nonlocal count
        count += 1
        trial = run(short, sized(policy, credit_bytes, partition_bytes), f"trial{count}", 0)
        if trial.error is not None:
            raise TrialFailed(f"tuning: trial {count} of {policy.tune}: {trial.error}")
        return float(np.median([worker.iteration_s[TRIAL_WARMUP:] for worker in trial.workers]))

    initial = min(policy.tune, DEFAULT_INITIAL)
    tuning = tune(evaluate, trials=policy.tune, initial=initial, seed=cell.job.seed)
    best = tuning.best
    record = TunedSizes(
        credit_bytes=best.credit_bytes,
        partition_bytes=best.partition_bytes,
        trials=[(trial.credit_bytes, trial.partition_bytes, trial.seconds) for trial in tuning.trials],
    )
    return Tuned(sized(policy, best.credit_bytes, best.partition_bytes), record)


def require_search(experiment: Experiment) -> None:
    """Raises MissingPackage where a policy is to be tuned and what the search computes with is not installed."""
    if any(policy.tune for cell in experiment.cells for policy in cell.policies):
        require("scipy", "policies: tune")


def trial_cell(cell: Cell) -> Cell:
    """The job of `cell`, as short as a trial is."""
    iterations = min(cell.job.iterations, TRIAL_ITERATIONS)
    warmup = min(TRIAL_WARMUP, iterations - 2)
    return replace(cell, job=cell.job.model_copy(update={"iterations": iterations, "warmup": warmup}))


def sized(policy: Contender, credit_bytes: int, partition_bytes: int) -> Contender:
    """`policy` with these sizes, in bytes, and nothing left to tune."""
    partition = policy.engine.partition
    assert partition is not None  # who is tuned has one: contenders.py sees to it
    credit = variable(get_definition(policy.base).tuned)
    sizes = {credit: str(credit_bytes), partition.variable: str(partition_bytes)}
    return replace(policy, env={**policy.env, **sizes}, tune=0)
