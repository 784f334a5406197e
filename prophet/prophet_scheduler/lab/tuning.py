"""ByteScheduler's tuning in an experiment: short runs before the first repeat, then the policy with the best sizes.

Rule of this file: trials and their record; policies/algorithms/autotune.py searches, and the caller runs the trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from prophet_scheduler.lab.config import Cell, Experiment
from prophet_scheduler.lab.contenders import Contender
from prophet_scheduler.lab.records import TunedSizes
from prophet_scheduler.lab.runs import Run
from prophet_scheduler.policies import get_definition, variable
from prophet_scheduler.policies.algorithms.autotune import DEFAULT_INITIAL, tune

TRIAL_ITERATIONS = 10
TRIAL_WARMUP = 3
"""First iterations of a trial that do not count: the job starts, and a broadcast may still be under way."""

RunOnce = Callable[[Cell, Contender, str, int], Run]
"""Function (cell, policy, label, number of the repeat from 0) -> run."""


class TrialFailed(Exception):
    """Failure of a trial before its end; the message is one line."""


def tune_policy(cell: Cell, policy: Contender, run: RunOnce) -> tuple[Contender, TunedSizes]:
    """Return the policy with its best sizes, and these, after `policy.tune` short trials of `cell`'s job.

    Raises TrialFailed if one fails.
    """
    short, numbers = trial_cell(cell), itertools.count(1)

    def evaluate(credit_bytes: int, partition_bytes: int) -> float:
        count = next(numbers)
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
    return sized(policy, best.credit_bytes, best.partition_bytes), record


def of_search(experiment: Experiment) -> list[tuple[str, str]]:
    """Return what `core.optional.require` takes, for an experiment of which a policy needs tuning."""
    tuned = any(policy.tune for cell in experiment.cells for policy in cell.policies)
    return [("scipy", "policies: tune")] if tuned else []


def trial_cell(cell: Cell) -> Cell:
    """Return `cell` with a job of a trial's length."""
    iterations = min(cell.job.iterations, TRIAL_ITERATIONS)
    warmup = min(TRIAL_WARMUP, iterations - 2)
    return replace(cell, job=cell.job.model_copy(update={"iterations": iterations, "warmup": warmup}))


def sized(policy: Contender, credit_bytes: int, partition_bytes: int) -> Contender:
    """Return `policy` with these sizes in bytes and no tuning."""
    partition = policy.engine.partition
    assert partition is not None  # contenders.py checks this for tuned policies
    credit = variable(get_definition(policy.base).tuned)
    sizes = {credit: str(credit_bytes), partition.variable: str(partition_bytes)}
    return replace(policy, env={**policy.env, **sizes}, tune=0)
