"""Results of asynchronous training: the time to a loss, seconds per applied update, delays and drops.

Rule of this file: arithmetic on the workers' records. Times are seconds since a run's first worker started.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from prophet_scheduler.lab.jobs.record import WorkerRecord
from prophet_scheduler.lab.records import ConvergenceResult, LossAt


def losses(workers: Sequence[WorkerRecord]) -> list[tuple[float, float]]:
    """Return the loss measurements of all workers as (time, loss), by time.

    In asynchronous training, a worker measures the weights that it last pulled from the server.
    """
    began_s = min(worker.marks[0].start for worker in workers)
    return sorted(
        (time_s - began_s, loss)
        for worker in workers
        if worker.convergence is not None
        for time_s, loss in zip(worker.convergence.times_s, worker.convergence.losses, strict=True)
    )


def time_to_loss(workers: Sequence[WorkerRecord], loss: float) -> float | None:
    """Time when a worker's weights first had at most this loss; None if they never did."""
    return next((time_s for time_s, its in losses(workers) if its <= loss), None)


def update_s(workers: Sequence[WorkerRecord]) -> float | None:
    """Mean seconds between applied updates of any workers, while all workers train; None if none was applied.

    For synchronous workers, this is the iteration time divided by their number. Dropped updates do not count; they are
    assumed to be spread evenly over the run.
    """
    first = max(worker.marks[0].start for worker in workers)
    last = min(worker.marks[-1].start for worker in workers)
    applied = 0.0
    for worker in workers:
        kept = worker.convergence
        computed = sum(first < mark.start <= last for mark in worker.marks[1:])
        share = 1.0
        if kept is not None and kept.sent is not None and kept.dropped:
            share = kept.sent / (kept.sent + kept.dropped)
        applied += computed * share
    return (last - first) / applied if applied > 0 and last > first else None


def curve(workers: Sequence[WorkerRecord], points: int = 100) -> list[LossAt]:
    """Return about `points` loss measurements, evenly sampled from those of all workers, by time."""
    looks = losses(workers)
    step = max(1, len(looks) // points)
    return [LossAt(time_s=time_s, loss=loss) for time_s, loss in looks[::step]]


def converged(runs: Sequence[Sequence[WorkerRecord]], target_loss: float) -> ConvergenceResult | None:
    """Return the result of a policy from its repeats, each a sequence of workers; None if no worker recorded a loss.

    `time_to_loss_s` is set only if every repeat reached the loss. The curve is the first repeat's.
    """
    kept = [worker.convergence for workers in runs for worker in workers if worker.convergence is not None]
    if not kept:
        return None
    times = [time_to_loss(workers, target_loss) for workers in runs]
    updates = [update for update in map(update_s, runs) if update is not None]
    apart = [worker for worker in kept if worker.sent is not None]
    delays = [worker.greatest_delay for worker in apart if worker.greatest_delay is not None]
    reached = [time_s for time_s in times if time_s is not None]
    return ConvergenceResult(
        target_loss=target_loss,
        time_to_loss_s=median(reached) if len(reached) == len(times) else None,
        times_to_loss_s=times,
        update_s=median(updates) if updates else None,
        least_loss=min((loss for worker in kept for loss in worker.losses), default=None),
        greatest_delay=max(delays) if delays else None,
        sent=sum(worker.sent or 0 for worker in apart) if apart else None,
        dropped=sum(worker.dropped or 0 for worker in apart) if apart else None,
        uncoordinated=sum(worker.uncoordinated or 0 for worker in apart) if apart else None,
        applied_otherwise=sum((worker.applied or 0) != worker.sent for worker in apart) if apart else None,
        curve=curve(runs[0]),
    )
