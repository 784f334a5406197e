"""Waits and ways of gradients, computed by hand."""

from __future__ import annotations

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.transfer import Transfer
from prophet_scheduler.lab.jobs.record import Mark
from prophet_scheduler.lab.transfers import RecordedRun, Turnaround, mean_s, turnarounds

PUSH, PULL = QueueKind.PUSH, QueueKind.PULL
MARKS = tuple(Mark(s, s, s + 1.0) for s in (10.0, 12.0, 14.0, 16.0))


def transfers(late_s: float, began: float) -> list[Transfer]:
    """Gradient 1 in two partitions, then gradient 0; `late_s` is how long both wait."""
    return [
        Transfer(1, 0, 10, PUSH, began + 0.5, began + 0.5 + late_s, began + 0.8),
        Transfer(1, 1, 10, PUSH, began + 0.5, began + 0.8 + late_s, began + 1.0),
        Transfer(0, 0, 10, PUSH, began + 1.0, began + 1.0 + late_s, began + 1.2),
        Transfer(1, 0, 10, PULL, began + 0.9, began + 0.9, began + 1.1),
        Transfer(0, 0, 10, PULL, began + 1.2, began + 1.2, began + 1.4),
        Transfer(1, 1, 10, PULL, began + 1.1, began + 1.1, began + 1.3),
    ]


def close(ours: Turnaround, generated: float, starts: float, back: float) -> bool:
    pairs = ((ours.generated_s, generated), (ours.starts_s, starts), (ours.back_s, back))
    return all(abs(a - b) < 1e-9 for a, b in pairs)


def test_a_gradient_is_back_with_its_last_partition_and_waits_until_its_first_starts() -> None:
    run = RecordedRun("p", tuple(t for mark in MARKS for t in transfers(0.1, mark.backward)), MARKS)
    first, second = turnarounds(run, warmup=1)
    assert close(first, 1.0, 1.1, 1.4)
    assert close(second, 0.5, 0.6, 1.3)
    means = mean_s([first, second])
    assert abs(means.wait_s - 0.1) < 1e-9
    assert abs(means.total_s - 0.6) < 1e-9


def test_iterations_of_the_warm_up_and_the_last_are_not_counted() -> None:
    late = (5.0, 0.1, 0.3, 7.0)
    run = RecordedRun(
        "p", tuple(t for mark, wait in zip(MARKS, late, strict=True) for t in transfers(wait, mark.backward)), MARKS
    )
    first, _ = turnarounds(run, warmup=1)
    assert close(first, 1.0, 1.2, 1.4), "the median of 1.1 and 1.3"


def test_a_gradient_that_is_never_pulled_is_left_out() -> None:
    run = RecordedRun("p", (Transfer(3, 0, 10, PUSH, 10.5, 10.6, 10.7),), MARKS)
    assert turnarounds(run, warmup=0) == []


def test_an_all_reduce_is_back_when_it_ends() -> None:
    pushes = tuple(Transfer(3, 0, 10, PUSH, m.backward + 0.5, m.backward + 0.6, m.backward + 0.8) for m in MARKS)
    (only,) = turnarounds(RecordedRun("p", pushes, MARKS, all_reduce=True), warmup=0)
    assert close(only, 0.5, 0.6, 0.8)


def test_a_recording_shorter_than_the_warm_up_still_shows_its_last_iteration() -> None:
    run = RecordedRun("p", tuple(transfers(0.1, MARKS[2].backward)), MARKS)
    assert len(turnarounds(run, warmup=10)) == 2


def test_after_a_recut_the_blocks_of_the_last_iteration_are_counted_where_they_were_the_same() -> None:
    def blocks(size: int, late_s: float, began: float) -> list[Transfer]:
        return [
            Transfer(place, 0, size, queue, began + 0.1, began + 0.1 + late_s, began + 0.9)
            for place in range(0, 40, size)
            for queue in (PUSH, PULL)
        ]

    sizes = ((20, 7.0), (10, 0.1), (10, 0.3), (10, 9.0))
    transfers = tuple(t for mark, cut in zip(MARKS, sizes, strict=True) for t in blocks(*cut, mark.backward))
    ways = turnarounds(RecordedRun("p", transfers, MARKS, arena=True), warmup=0)
    assert [(way.gradient, way.size_bytes) for way in ways] == [(0, 10), (10, 10), (20, 10), (30, 10)]
    assert all(abs(way.wait_s - 0.2) < 1e-9 for way in ways), "the median of 0.1 and 0.3"
