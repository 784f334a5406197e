"""ByteScheduler's tuning in an experiment: short trials before the first repeat, then the policy with the best sizes.

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
"""Number of a trial's first iterations that do not count: the job is starting, and a broadcast may be in flight."""

RunOnce = Callable[[Cell, Contender, str, int], Run]
"""Function (cell, policy, label, repeat from 0) -> run."""


class TrialFailed(Exception):
    """Failure of a trial; the message is one line."""


def tune_policy(cell: Cell, policy: Contender, run: RunOnce) -> tuple[Contender, TunedSizes]:
    """Run `policy.tune` short trials of `cell`'s job, and return the policy with the best sizes, and their record.

    Raises TrialFailed if a trial fails.
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
    """Return arguments for `core.optional.require`: the packages that the search needs if a policy is tuned."""
    tuned = any(policy.tune for cell in experiment.cells for policy in cell.policies)
    return [("scipy", "policies: tune")] if tuned else []


def trial_cell(cell: Cell) -> Cell:
    """Return `cell` with its job shortened to a trial."""
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
