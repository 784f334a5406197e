"""The time to a loss, seconds an applied update, and what became of updates, from what workers left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from prophet_scheduler.lab.jobs.record import Convergence, Mark, WorkerRecord
from prophet_scheduler.lab.results import CURVE_POINTS, converged, update_s


def worker(starts: Sequence[float], losses: Sequence[float] = (), **more: Any) -> WorkerRecord:
    """Iterations begin at `starts`, and the loss is looked at 0.1 s later."""
    marks = [Mark(start, start, start) for start in starts]
    times = [start + 0.1 for start, _ in zip(starts, losses, strict=False)]
    kept = Convergence(times_s=times, losses=list(losses), **more)
    return WorkerRecord(iteration_s=[], marks=marks, convergence=kept)


FAST = worker([10, 11, 12, 13, 14], [2.3, 1.5, 0.9, 0.5, 0.4], sent=4, dropped=0, applied=4, greatest_delay=2)
SLOW = worker([10.5, 12.5, 14.5], [2.3, 0.6, 0.45], sent=3, dropped=1, uncoordinated=1, applied=3, greatest_delay=5)


def test_time_to_loss_of_fastest_worker() -> None:
    for loss, time_s in ((0.6, pytest.approx(2.6)), (0.5, pytest.approx(3.1)), (0.1, None)):
        result = converged([[FAST, SLOW]], loss)
        assert result is not None and result.time_to_loss_s == time_s


def test_dropped_updates_do_not_count() -> None:
    # From 10.5 to 14: four of the fast one, one of the slow one, of which a quarter was dropped.
    assert update_s([FAST, SLOW]) == pytest.approx(3.5 / (4 + 0.75))
    alone = [worker([0, 1, 2, 3]), worker([0, 1, 2, 3])]
    assert update_s(alone) == pytest.approx(1 / 2), "in step, an iteration's time by the workers"
    assert update_s([worker([0, 1]), worker([2, 3])]) is None


def test_curve_is_ordered_and_short() -> None:
    result = converged([[FAST, SLOW]], 0.6)
    assert result is not None
    assert [point.time_s for point in result.curve] == sorted(point.time_s for point in result.curve)
    assert (result.curve[0].loss, len(result.curve)) == (2.3, 8)
    long = converged([[worker(range(1000), [2.3] * 1000)]], 0.6)
    assert long is not None and len(long.curve) == CURVE_POINTS


def test_counts_are_sums_over_repeats() -> None:
    result = converged([[FAST, SLOW], [FAST, worker([10, 11, 12], [2.3, 1.0, 0.9])]], 0.6)
    assert result is not None
    assert result.times_to_loss_s == [pytest.approx(2.6), pytest.approx(3.1)]
    assert result.time_to_loss_s == pytest.approx(2.85)
    assert (result.greatest_delay, result.sent, result.dropped, result.uncoordinated) == (5, 11, 1, 1)
    assert result.applied_otherwise == 0
    assert result.least_loss == 0.4


def test_unreached_loss_has_no_time() -> None:
    result = converged([[FAST], [worker([0, 1], [2.3, 2.2])]], 0.6)
    assert result is not None
    assert (result.time_to_loss_s, result.times_to_loss_s[1]) == (None, None)


def test_lost_and_repeated_updates_are_counted() -> None:
    result = converged([[worker([0, 1], [2.3], sent=4, dropped=0, applied=5)]], 0.6)
    assert result is not None and result.applied_otherwise == 1


def test_job_without_losses_has_no_result() -> None:
    assert converged([[WorkerRecord(iteration_s=[], marks=[Mark(0, 0, 0)])]], 0.6) is None
