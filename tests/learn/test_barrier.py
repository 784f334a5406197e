"""A barrier of a job's iterations: believed after several that show it, and given up after several that do not."""

from __future__ import annotations

from prophet_scheduler.learn.barrier import LEAST_ALIKE, BarrierWatch


def test_a_barrier_is_believed_when_several_iterations_in_a_row_have_one() -> None:
    watch = BarrierWatch()
    for number in range(LEAST_ALIKE):
        assert not watch.holds, number
        watch.iteration(waited=True)
    assert watch.holds


def test_one_iteration_of_the_other_kind_changes_nothing() -> None:
    watch = BarrierWatch()
    for _ in range(20):
        for waited in [True] * (LEAST_ALIKE - 1) + [False]:
            watch.iteration(waited)
        assert not watch.holds
    for _ in range(LEAST_ALIKE):
        watch.iteration(waited=True)
    for _ in range(20):
        for waited in [False] * (LEAST_ALIKE - 1) + [True]:
            watch.iteration(waited)
        assert watch.holds


def test_it_goes_when_iterations_have_none_any_more() -> None:
    watch = BarrierWatch()
    for waited in [True] * LEAST_ALIKE + [False] * LEAST_ALIKE:
        watch.iteration(waited)
    assert not watch.holds
