"""Tests of how far a replica may lag: what goes, what waits, and when a copy is due. Norms are small whole numbers."""

from __future__ import annotations

import math

from prophet_mlfabric.lag import RETRY_S, ReplicaLag


def copied(lag: ReplicaLag, now_s: float = 0.0, reason: str = "") -> None:
    """Order one copy and answer it."""
    order = lag.ordered(0)
    lag.answered(order.number, 0, reason, now_s)


def current(bound: float = 10.0) -> ReplicaLag:
    """Return the lag of a replica that has all that there is."""
    lag = ReplicaLag(bound)
    copied(lag)
    return lag


def test_what_is_applied_and_what_is_under_way_stay_within_the_bound_together() -> None:
    lag = current()
    lag.changed(4.0)
    assert lag.admits(3.0, 3.0), "4 + 3 + 3 is the bound"
    assert lag.greatest == 10.0
    assert not lag.admits(3.1, 3.0)
    assert lag.greatest == 10.0, "it did not go"


def test_a_copy_has_what_was_counted_when_it_was_ordered() -> None:
    lag = current()
    lag.changed(6.0)
    order = lag.ordered(1)
    lag.changed(2.0)
    assert lag.lag == 8.0, "it is not there yet"
    lag.answered(order.number, 1, "", 1.0)
    assert lag.lag == 2.0, "what came after the order may not be in it"
    assert lag.copies == 2


def test_a_copy_is_due_at_half_of_the_bound_and_sooner_where_an_update_waits() -> None:
    lag = current()
    lag.changed(4.0)
    assert not lag.due(False, 0.0)
    assert lag.due(True, 0.0)
    lag.changed(1.0)
    assert lag.due(False, 0.0)
    lag.ordered(0)
    assert not lag.due(True, 0.0), "one at a time"


def test_a_copy_of_nothing_new_helps_nobody() -> None:
    lag = current()
    assert not lag.admits(2.0, 9.0)
    assert not lag.due(True, 0.0), "what is under way has to be applied first"


def test_only_the_worker_that_was_asked_answers_and_only_once() -> None:
    lag = current()
    lag.changed(5.0)
    order = lag.ordered(2)
    lag.answered(order.number, 3, "", 0.0)
    lag.answered(order.number + 1, 2, "", 0.0)
    assert lag.lag == 5.0 and lag.order == order
    lag.answered(order.number, 2, "", 0.0)
    lag.changed(1.0)
    lag.answered(order.number, 2, "", 0.0)
    assert (lag.lag, lag.copies) == (1.0, 2)


def test_the_next_copy_is_another_workers() -> None:
    lag = ReplicaLag(10.0)
    assert min((0, 1, 2), key=lag.turns) == 0
    lag.ordered(0)
    assert [min(alive, key=lag.turns) for alive in ((0, 1, 2), (0, 2), (0,))] == [1, 2, 0]


def test_while_no_copy_gets_there_everything_goes_with_one_line() -> None:
    lag = current()
    lag.changed(9.0)
    copied(lag, 1.0, "refused")
    assert lag.admits(100.0, 100.0) and lag.greatest == 0.0
    assert not lag.due(True, 1.0 + RETRY_S - 0.1)
    assert lag.due(True, 1.0 + RETRY_S)
    copied(lag, 7.0, "refused")
    assert lag.notices == ["no copy of the model reaches the replica (refused): updates go on without it"]
    assert lag.failed == 2
    copied(lag, 13.0)
    assert lag.notices[1:] == ["the replica has a copy of the model again"]
    assert lag.lag == 0.0 and not lag.admits(100.0, 100.0)


def test_an_update_above_the_bound_goes_alone_with_one_line() -> None:
    lag = current()
    assert not lag.admits(11.0, 1.0)
    lag.changed(1.0)
    assert not lag.admits(11.0, 0.0) and lag.due(True, 0.0)
    copied(lag)
    assert lag.admits(11.0, 0.0) and lag.admits(12.0, 0.0)
    (line,) = lag.notices
    assert line.startswith("an update has the norm 11, which alone is above the divergence bound 10: ")
    assert lag.greatest == 12.0, "so much may have been lost"


def test_of_another_job_nothing_is_known() -> None:
    lag = current()
    lag.begin()
    assert lag.lag == math.inf and lag.due(False, 0.0)
    assert lag.ordered(0).number == 1, "no number comes twice"
