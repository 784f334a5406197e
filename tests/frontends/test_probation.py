"""Tests of how long uses are watched: some steps, and only while it can help if a program waits for all averages."""

from __future__ import annotations

from prophet_scheduler.frontends.torch.probation import IN_VAIN, STEPS, Probation


def test_the_first_steps_that_could_be_late_keep_the_barrier_and_are_watched() -> None:
    probation = Probation()
    for number in range(STEPS):
        assert probation.barrier and probation.under_way and probation.watches, number
        probation.stepped()
    assert not (probation.barrier or probation.under_way or probation.watches)
    for _ in range(2 * IN_VAIN):
        probation.in_vain()
    assert not (probation.barrier or probation.watches), "it is over for good"


def test_a_program_that_waits_for_all_averages_is_watched_for_some_iterations_alone() -> None:
    probation = Probation()
    for number in range(IN_VAIN):
        assert probation.watches, number
        probation.in_vain()
    for _ in range(1000):
        assert not probation.watches and probation.barrier
        probation.in_vain()


def test_one_that_stops_waiting_is_noticed_at_once_and_has_a_probation_of_its_own() -> None:
    probation = Probation()
    for _ in range(1000):
        probation.in_vain()
    assert probation.barrier, "of that step too no update is late: nothing is known of the forward pass before it"
    probation.stepped()
    for number in range(STEPS):
        assert probation.barrier and probation.watches, number
        probation.stepped()
    assert not probation.barrier and not probation.watches


def test_iterations_that_wait_now_and_then_do_not_put_it_off() -> None:
    probation = Probation()
    for _ in range(STEPS):
        for _ in range(IN_VAIN - 1):
            probation.in_vain()
        assert probation.watches
        probation.stepped()
    assert not probation.barrier


def test_a_barrier_for_good_has_nothing_to_watch() -> None:
    probation = Probation()
    probation.for_good()
    assert probation.barrier and not probation.under_way and not probation.watches
    for _ in range(2 * STEPS):
        probation.stepped()
    assert probation.barrier
