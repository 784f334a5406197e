"""A barrier of a job's iterations: the first one decides, and after it several in a row."""

from __future__ import annotations

import pytest

from prophet_scheduler.learn.barrier import LEAST_ALIKE, BarrierWatch


def watch(*iterations: bool) -> BarrierWatch:
    made = BarrierWatch()
    for waited in iterations:
        made.iteration(waited)
    return made


@pytest.mark.parametrize("first", [True, False])
def test_the_first_iteration_is_believed_at_once(first: bool) -> None:
    assert not watch().holds
    assert watch(first).holds == first


@pytest.mark.parametrize("first", [True, False])
def test_later_the_belief_changes_after_several_other_iterations_in_a_row(first: bool) -> None:
    few = [not first] * (LEAST_ALIKE - 1)
    assert watch(first, *20 * [*few, first]).holds == first
    assert watch(first, *few).holds == first
    assert watch(first, *few, not first).holds != first
