"""The coordinator's state machine by hand: who is told what, and when. Rates are 100 bytes per second."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from prophet_mlfabric import messages as msg
from prophet_mlfabric.coordination import MOST_KEPT, MOST_OPEN, MOURNED, Addressed, Coordination
from prophet_mlfabric.job import Terms
from prophet_scheduler.core.errors import UserError
from support.virtual_job import open_updates

TERMS = Terms(rate=100.0, dead_s=10.0, lease_s=30.0)


def hello(worker: int, node: str = "", incarnation: int = 1, aggregates: bool = False, version: int = 0) -> msg.Hello:
    return msg.Hello(
        tenant="job",
        worker=worker,
        incarnation=incarnation,
        node=node or f"machine{worker}",
        sums_at=f"machine{worker}:1" if aggregates else None,
        version=version,
    )


def job(workers: int, terms: Terms = TERMS, aggregates: bool = False) -> Coordination:
    coordination = Coordination(terms, epoch=7)
    for worker in range(workers):
        coordination.join(hello(worker, aggregates=aggregates), 0.0)
    coordination.turn(0.0)
    return coordination


def ask(update: int = 0, size: int = 100, version: int = 0) -> msg.Ask:
    return msg.Ask(update=update, size_bytes=size, version=version)


def done(update: int = 0, version: int = 0, size: int = 100) -> msg.Done:
    return msg.Done(update=update, version=version, size_bytes=size)


def grants(said: list[Addressed]) -> list[tuple[int, msg.Grant]]:
    return [(worker, answer) for worker, answer in said if isinstance(answer, msg.Grant)]


def about(value: float) -> Any:
    return pytest.approx(value)


def state(coordination: Coordination) -> tuple[Any, ...]:
    """All that a refused request may not change."""
    return coordination.version, sorted(open_updates(coordination)), replace(coordination.counts, refused=0)


def test_the_wire_is_idle_and_an_update_goes_at_once() -> None:
    coordination = job(1)
    assert coordination.receive(0, ask(), 5.0) == [(0, msg.Wait(update=0))]
    assert coordination.turn(5.0) == [(0, msg.Grant(update=0, version=0))]
    assert coordination.receive(0, done(), 6.1) == [(0, msg.Applied(update=0, version=1, delay=1))]


def test_while_the_wire_is_busy_a_batch_gathers_and_the_shortest_is_first() -> None:
    coordination = job(3)
    coordination.receive(0, ask(size=1000), 0.0)
    coordination.turn(0.0)
    coordination.receive(1, ask(size=500), 0.2)
    assert coordination.turn(0.2) == []
    assert coordination.next_s == about(0.3)  # 100 ms after the first of them
    coordination.receive(2, ask(size=100), 0.25)
    assert coordination.turn(0.31) == []
    coordination.receive(0, done(size=1000), 9.0)
    ((worker, grant),) = grants(coordination.turn(9.0))
    assert (worker, grant.start_s) == (2, 0.0)
    assert coordination.next_s < 10.0
    assert coordination.receive(1, ask(size=500), 9.1) == [(1, msg.Wait(update=0))]


def test_small_updates_wait_no_longer_than_the_wire_is_busy() -> None:
    coordination = job(2)
    coordination.receive(0, ask(size=5), 0.0)  # 50 ms
    coordination.turn(0.0)
    coordination.receive(1, ask(size=5), 0.01)
    coordination.turn(0.01)
    assert coordination.next_s == about(0.048)
    ((worker, grant),) = grants(coordination.turn(0.048))
    assert (worker, grant.start_s) == (1, about(0.002))


def test_an_update_that_ends_early_draws_the_next_one_forward() -> None:
    coordination = job(2)
    coordination.receive(0, ask(), 0.0)
    coordination.receive(1, ask(), 0.0)
    assert [worker for worker, _ in grants(coordination.turn(0.0))] == [0]
    assert coordination.next_s == about(0.5)
    coordination.receive(0, done(), 0.4)
    assert grants(coordination.turn(0.4)) == [(1, msg.Grant(update=0, version=1))]


def test_what_is_said_twice_counts_once() -> None:
    coordination = job(1)
    coordination.receive(0, ask(), 0.0)
    (granted,) = grants(coordination.turn(0.0))
    assert grants(coordination.receive(0, ask(), 0.1)) == [granted]
    first = coordination.receive(0, done(), 1.0)
    assert coordination.receive(0, done(), 1.1) == coordination.receive(0, ask(), 1.2) == first
    assert coordination.version == coordination.counts.applied == 1
    coordination.join(hello(0), 1.3)  # the same worker on a new connection
    assert coordination.receive(0, done(), 1.4) == first
    assert coordination.version == 1


def test_an_update_that_went_without_a_grant_is_counted() -> None:
    coordination = job(2)
    coordination.receive(0, ask(update=3), 0.0)
    assert coordination.receive(1, done(update=9), 0.1) == [(1, msg.Applied(update=9, version=1, delay=1))]
    assert coordination.receive(0, done(update=3), 0.2) == [(0, msg.Applied(update=3, version=2, delay=2))]
    assert grants(coordination.turn(0.2)) == []
    assert (coordination.counts.ungranted, coordination.counts.greatest_ungranted_delay) == (2, 2)
    assert coordination.counts.greatest_delay == 0


def test_what_would_be_too_late_is_dropped_before_it_costs_a_byte() -> None:
    coordination = job(3, replace(TERMS, delay_bound=1))
    for worker in range(3):
        coordination.receive(worker, ask(), 0.0)
    said = coordination.turn(0.0)
    assert [(worker, grant.dropped) for worker, grant in grants(said)] == [(2, True), (1, True), (0, False)]
    assert grants(said)[0][1].reason == "its delay would be above 1 versions"
    assert grants(coordination.receive(2, ask(), 0.1)) == [grants(said)[0]]
    assert (coordination.counts.dropped, list(open_updates(coordination))) == (2, [(0, 0)])


def test_nothing_starts_that_could_make_one_under_way_too_late() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2, server_rate=1e6))
    coordination.receive(0, done(update=0), 0.0)  # version 1
    coordination.receive(0, ask(update=1, size=1000), 0.0)  # from version 0: it has to be the next one
    assert [worker for worker, _ in grants(coordination.turn(0.0))] == [0]
    coordination.receive(1, ask(version=1), 0.1)
    # The wire would have room for both, and if the first were overtaken, its delay would be 3.
    assert grants(coordination.turn(0.3)) == []
    coordination.receive(0, done(update=1), 9.0)
    assert [worker for worker, _ in grants(coordination.turn(9.0))] == [1]
    coordination.receive(1, done(version=1), 9.5)
    assert coordination.counts.greatest_delay == 2


def test_updates_that_nobody_granted_can_make_a_planned_one_too_late() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2))
    coordination.receive(0, ask(size=1000), 0.0)
    coordination.turn(0.0)
    coordination.receive(1, ask(), 0.0)
    coordination.turn(0.1)
    coordination.receive(0, done(update=7), 0.2)
    assert [(worker, grant.dropped) for worker, grant in grants(coordination.turn(0.2))] == [(1, True)]


def test_what_a_dead_worker_was_granted_is_released() -> None:
    coordination = job(2)
    coordination.receive(0, ask(size=100_000), 0.0)
    coordination.receive(1, ask(size=200_000), 0.0)
    assert [worker for worker, _ in grants(coordination.turn(0.0))] == [0]
    for second in range(1, 12):
        coordination.receive(1, msg.Beat(), float(second))
        said = coordination.turn(float(second))
    assert [worker for worker, _ in grants(said)] == [1]
    assert (coordination.counts.died, coordination.counts.lost) == (1, 1)
    # It was not dead after all, and the update had come through: it counts.
    assert coordination.receive(0, done(size=100_000), 12.0) == [(0, msg.Applied(update=0, version=1, delay=1))]
    assert coordination.receive(0, done(size=100_000), 12.1) == [(0, msg.Applied(update=0, version=1, delay=1))]


def test_a_worker_that_starts_anew_or_leaves_has_nothing_open() -> None:
    coordination = job(2)
    coordination.receive(0, ask(), 0.0)
    coordination.receive(1, ask(), 0.0)
    coordination.turn(0.0)
    assert coordination.join(hello(0, incarnation=2), 0.1) == [(0, msg.Welcome(epoch=7, version=0))]
    assert [worker for worker, _ in grants(coordination.turn(0.1))] == [1]
    # Update 0 of the new incarnation is another one.
    assert coordination.receive(0, ask(), 0.2) == [(0, msg.Wait(update=0))]
    coordination.receive(1, msg.Bye(), 0.3)
    assert [worker for worker, _ in grants(coordination.turn(0.3))] == [0]


def test_a_transfer_that_never_ends_is_given_up() -> None:
    coordination = job(1)
    coordination.receive(0, ask(), 0.0)
    coordination.turn(0.0)
    said: list[Addressed] = []
    for second in range(1, 33):
        coordination.receive(0, msg.Beat(), float(second))
        said += coordination.turn(float(second))
    assert said == [(0, msg.Lost(update=0, reason="its transfer was 30 s late"))]


def test_a_reported_rate_counts_for_the_next_start() -> None:
    coordination = job(2)
    coordination.receive(0, msg.Beat(up=10.0), 0.0)
    coordination.receive(0, ask(), 0.0)
    coordination.turn(0.0)
    coordination.receive(1, ask(size=900), 0.1)
    # Of the server's 100 bytes a second 90 are left beside the slow worker's update, so nobody has to wait for it.
    assert [worker for worker, _ in grants(coordination.turn(0.2))] == [1]


def aggregated() -> tuple[Coordination, int, list[tuple[int, int]], int, dict[int, msg.Grant]]:
    """A job in which updates are summed and all may send: the collection, its members, who sums them, their grants."""
    coordination = job(4, replace(TERMS, server_rate=20.0), aggregates=True)
    coordination.receive(0, ask(size=1000), 0.0)
    coordination.turn(0.0)
    for worker in (1, 2, 3):
        coordination.receive(worker, ask(), 0.0)
    said = coordination.turn(0.1)
    ((aggregator, collect),) = [(worker, answer) for worker, answer in said if isinstance(answer, msg.Collect)]
    told = dict(grants(said))
    while len(told) < 3:
        assert coordination.next_s < 5.0
        told.update(grants(coordination.turn(coordination.next_s)))
    return coordination, collect.number, list(collect.members), aggregator, told


def test_a_sum_is_one_push_and_as_many_versions_as_it_has_updates() -> None:
    coordination, number, members, aggregator, told = aggregated()
    assert {worker: grant.aggregator for worker, grant in told.items()} == {worker: aggregator for worker, _ in members}
    coordination.receive(aggregator, msg.Ask(update=number, sum=True), 5.0)
    assert grants(coordination.turn(5.0)) == []  # the wire is busy with worker 0's
    coordination.receive(0, done(size=1000), 6.0)
    ((worker, grant),) = grants(coordination.turn(6.0))
    assert (worker, grant.sum, grant.update) == (aggregator, True, number)
    pushed = msg.Done(update=number, size_bytes=100, sum=True)
    said = coordination.receive(aggregator, pushed, 7.0)
    assert [(w, a.version) for w, a in said[:-1] if isinstance(a, msg.Applied)] == [
        (w, place) for place, (w, _) in enumerate(members, start=2)
    ]
    assert said[-1] == (aggregator, msg.Applied(update=number, sum=True, version=1 + len(members)))
    assert coordination.receive(aggregator, pushed, 7.1) == [said[-1]]
    assert coordination.version == coordination.counts.applied == 1 + len(members)
    assert coordination.counts.applied_bytes == 1100


def test_a_member_that_dies_before_its_sum_is_left_out_and_one_that_is_in_it_counts() -> None:
    coordination, number, members, aggregator, _ = aggregated()
    first, second = [worker for worker, _ in members if worker != aggregator][:2]
    said = coordination.receive(first, msg.Bye(), 3.0)
    left = tuple(member for member in members if member[0] != first)
    assert (aggregator, msg.Collect(number=number, members=left)) in said
    coordination.receive(aggregator, msg.Ask(update=number, sum=True), 4.0)
    coordination.receive(second, msg.Bye(), 4.1)
    coordination.receive(0, done(size=1000), 5.0)
    coordination.turn(5.0)
    coordination.receive(aggregator, msg.Done(update=number, size_bytes=100, sum=True), 6.0)
    assert coordination.version == 1 + len(left)


def test_a_sum_is_lost_with_its_aggregator() -> None:
    coordination, _, members, aggregator, _ = aggregated()
    said = coordination.receive(aggregator, msg.Bye(), 3.0)
    others = sorted(worker for worker, _ in members if worker != aggregator)
    lost = sorted(worker for worker, answer in said if isinstance(answer, msg.Lost))
    assert [worker for worker in lost if worker != aggregator] == others
    assert list(open_updates(coordination)) == [(0, 0)]


@pytest.mark.parametrize(
    ("worker", "request_", "text"),
    [
        (9, ask(), "worker 9 has not said hello"),
        (0, ask(update=1, version=5), "version 5 is newer than the model, which has 0"),
        (0, msg.Ask(update=3, sum=True), "there is no collection 3 of worker 0"),
        (0, msg.Done(update=3, size_bytes=1, sum=True), "there is no collection 3 of worker 0"),
        (0, msg.Clock(rounds=1, models=1), "worker 0 joined without a staleness"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    worker: int, request_: msg.Ask | msg.Done | msg.Clock, text: str
) -> None:
    coordination = job(1)
    coordination.receive(0, ask(), 0.0)
    before = state(coordination)
    ((to, answer),) = coordination.receive(worker, request_, 0.0)
    assert isinstance(answer, msg.Denied) and (to, answer.text) == (worker, text)
    assert state(coordination) == before


def test_a_worker_that_asks_on_and_on_is_refused_and_the_others_are_not() -> None:
    coordination = job(2)
    coordination.receive(1, ask(size=10_000), 0.0)
    coordination.turn(0.0)
    answers = [coordination.receive(0, ask(update=number), 0.0)[0][1] for number in range(MOST_OPEN)]
    assert all(isinstance(answer, msg.Wait) for answer in answers)
    before, again = state(coordination), ask(update=MOST_OPEN)
    refused = 10_000
    for _ in range(refused):
        coordination.receive(0, again, 0.0)
    assert state(coordination) == before and coordination.counts.refused == refused
    assert len(list(open_updates(coordination))) == MOST_OPEN + 1
    assert isinstance(coordination.receive(1, ask(update=1), 0.1)[0][1], msg.Wait)


def test_more_workers_and_more_waiting_than_there_may_be_are_refused() -> None:
    coordination = job(2, replace(TERMS, most_workers=2, most_waiting=1))
    assert isinstance(coordination.join(hello(2), 0.0)[0][1], msg.Denied)
    coordination.receive(0, ask(size=10_000), 0.0)
    coordination.turn(0.0)
    assert isinstance(coordination.receive(1, ask(), 0.0)[0][1], msg.Wait)
    assert isinstance(coordination.receive(1, ask(update=1), 0.0)[0][1], msg.Denied)


def test_finished_updates_are_remembered_up_to_a_number() -> None:
    coordination = job(1)
    for number in range(MOST_KEPT + 1):
        coordination.receive(0, done(update=number), 0.0)
    assert isinstance(coordination.receive(0, done(update=0), 0.0)[0][1], msg.Denied)
    assert isinstance(coordination.receive(0, done(update=1), 0.0)[0][1], msg.Applied)
    assert coordination.version == MOST_KEPT + 1


def test_a_coordinator_that_was_started_anew_counts_on() -> None:
    coordination = Coordination(TERMS, epoch=8)
    assert coordination.join(hello(0, version=41), 0.0) == [(0, msg.Welcome(epoch=8, version=41))]
    assert coordination.join(hello(1, version=40), 0.0) == [(1, msg.Welcome(epoch=8, version=41))]
    # What was pushed meanwhile counts on top of what any of them had heard.
    coordination.receive(0, done(update=7), 0.1)
    assert coordination.join(hello(2, version=42), 0.2) == [(2, msg.Welcome(epoch=8, version=43))]
    # A version that it has said itself is none of before.
    known = hello(0, version=43).model_copy(update={"epoch": 8})
    assert coordination.join(known, 0.3) == [(0, msg.Welcome(epoch=8, version=43))]


def test_a_sum_of_before_a_new_start_is_not_taken_for_another() -> None:
    _, number, _, aggregator, _ = aggregated()
    anew = Coordination(TERMS, epoch=8)
    anew.join(hello(aggregator), 0.0)
    ((to, answer),) = anew.receive(aggregator, msg.Done(update=number, size_bytes=100, sum=True), 0.1)
    assert isinstance(answer, msg.Denied) and (to, answer.update) == (aggregator, number)
    assert anew.version == 0


def test_a_lost_update_that_is_in_the_model_after_all_counts_once() -> None:
    coordination, number, members, aggregator, _ = aggregated()
    coordination.receive(aggregator, msg.Bye(), 3.0)
    pushed = msg.Done(update=number, size_bytes=100, sum=True)
    assert coordination.receive(aggregator, pushed, 3.1) == [
        (aggregator, msg.Applied(update=number, sum=True, version=0))
    ]
    for worker, update in members:
        for time_s in (4.0, 4.1):
            coordination.receive(worker, done(update), time_s)
    assert coordination.version == coordination.counts.applied == len(members)


def test_a_job_that_follows_another_has_a_model_of_its_own() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2))
    for update in range(5):
        coordination.receive(0, done(update, version=update), 0.0)
    for worker in range(2):
        coordination.receive(worker, msg.Bye(), 1.0)
    assert coordination.join(hello(0, incarnation=2), 2.0) == [(0, msg.Welcome(epoch=8, version=0))]
    coordination.receive(0, ask(), 2.0)
    assert [grant.dropped for _, grant in grants(coordination.turn(2.0))] == [False]


def test_a_refused_worker_begins_no_other_job() -> None:
    coordination = job(1)
    coordination.receive(0, done(), 0.0)
    coordination.receive(0, msg.Bye(), 1.0)
    ((_, answer),) = coordination.join(hello(0, incarnation=2).model_copy(update={"replicates": True}), 2.0)
    assert isinstance(answer, msg.Denied) and (coordination.version, coordination.epoch) == (1, 7)


def test_at_the_end_a_worker_hears_who_still_works_and_who_has_died() -> None:
    coordination = job(3)
    assert coordination.receive(0, msg.Bye(), 1.0) == [(0, msg.Parting(working=2))]
    for second in range(1, 2 + int(MOURNED * TERMS.dead_s)):
        coordination.receive(1, msg.Beat(), float(second))
        coordination.turn(float(second))
    end_s = 1.0 + MOURNED * TERMS.dead_s
    assert coordination.receive(0, msg.Bye(), end_s) == [(0, msg.Parting(working=1, died=(2,)))]
    nobody = msg.Parting(working=0, died=(2,))
    assert coordination.receive(1, msg.Bye(), end_s) == [(0, nobody), (1, nobody)]
    # It was dead in name only, and now the others have left without it.
    coordination.receive(2, msg.Beat(), end_s + 1)
    assert (2, nobody) in coordination.receive(2, msg.Bye(), end_s + 2)


def near(workers: int, staleness: int, terms: Terms = TERMS) -> Coordination:
    """A job whose workers have read the first model."""
    coordination = Coordination(terms, epoch=7)
    for worker in range(workers):
        said = hello(worker).model_copy(update={"workers": workers, "staleness": staleness})
        coordination.join(said, 0.0)
        coordination.receive(worker, msg.Clock(rounds=0, models=1), 0.0)
    coordination.turn(0.0)
    return coordination


def proceeds(said: list[Addressed]) -> list[tuple[int, int, bool]]:
    return [(worker, answer.rounds, answer.now) for worker, answer in said if isinstance(answer, msg.Proceed)]


def test_a_worker_that_leads_by_more_than_the_staleness_waits_for_the_slowest() -> None:
    coordination = near(2, staleness=1)
    assert proceeds(coordination.receive(0, msg.Clock(rounds=1, models=1), 1.0)) == [(0, 1, True)]
    coordination.receive(0, msg.Clock(rounds=1, models=2), 1.1)
    assert proceeds(coordination.receive(0, msg.Clock(rounds=2, models=2), 2.0)) == [(0, 2, False)]
    assert proceeds(coordination.receive(0, msg.Clock(rounds=2, models=2), 2.5)) == [(0, 2, False)], "said again"
    said = proceeds(coordination.receive(1, msg.Clock(rounds=1, models=1), 3.0))
    assert sorted(said) == [(0, 2, True), (1, 1, True)]


def test_in_step_no_update_goes_before_all_have_read_the_model() -> None:
    coordination = near(2, staleness=0)
    for worker in range(2):
        coordination.receive(worker, ask(), 1.0)
    coordination.turn(1.0)
    for worker in range(2):
        coordination.receive(worker, done(), 2.0 + worker)
    assert proceeds(coordination.receive(0, msg.Clock(rounds=1, models=1), 3.0)) == [(0, 1, False)]
    said = proceeds(coordination.receive(1, msg.Clock(rounds=1, models=1), 4.0))
    assert sorted(said) == [(0, 1, True), (1, 1, True)]
    coordination.receive(0, msg.Clock(rounds=1, models=2), 4.1)
    assert coordination.receive(0, ask(update=1, version=2), 4.2) == [(0, msg.Wait(update=1))]
    assert grants(coordination.turn(9.0)) == [], "worker 1 still reads"
    coordination.receive(1, msg.Clock(rounds=1, models=2), 9.1)
    assert [worker for worker, _ in grants(coordination.turn(9.1))] == [0]


def test_nobody_waits_for_a_worker_that_has_ended_or_died() -> None:
    coordination = near(3, staleness=0)
    coordination.receive(0, msg.Clock(rounds=1, models=1), 1.0)
    coordination.receive(1, msg.Bye(), 1.0)
    said: list[Addressed] = []
    for second in range(2, 13):
        coordination.receive(0, msg.Beat(), float(second))
        said += coordination.turn(float(second))
    assert proceeds(said) == [(0, 1, True)]
    assert coordination.counts.died == 1
    coordination.receive(2, msg.Beat(), 13.0)
    assert proceeds(coordination.receive(0, msg.Clock(rounds=2, models=2), 13.0)) == [(0, 2, False)], "it is back"


def test_a_worker_that_never_comes_is_waited_for_as_long_as_a_dead_one() -> None:
    """As one that ended while no coordinator was there."""
    coordination = Coordination(TERMS, epoch=7)
    coordination.join(hello(0).model_copy(update={"workers": 2, "staleness": 0}), 0.0)
    said = coordination.receive(0, msg.Clock(rounds=4, models=4), 0.0)
    assert proceeds(said) == [(0, 4, False)]
    for second in range(1, 12):
        coordination.receive(0, msg.Beat(), float(second))
        said += coordination.turn(float(second))
    assert proceeds(said) == [(0, 4, False), (0, 4, True)]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"staleness": 2}, "PROPHET_STALENESS 2 of 2 workers, but others of this job have PROPHET_STALENESS 1 of 2"),
        ({"staleness": None}, "no PROPHET_STALENESS, but others of this job have PROPHET_STALENESS 1 of 2 workers"),
        ({"workers": 3}, "PROPHET_STALENESS 1 of 3 workers, but others"),
        ({"worker": 2}, "PROPHET_STALENESS 1 of 2 workers: that is no valid number of workers for worker 2"),
    ],
)
def test_workers_that_want_to_train_otherwise_are_refused(change: dict[str, Any], text: str) -> None:
    coordination = near(2, staleness=1)
    before = state(coordination)
    said = hello(1, incarnation=2).model_copy(update={"workers": 2, "staleness": 1, **change})
    ((_, answer),) = coordination.join(said, 1.0)
    assert isinstance(answer, msg.Denied) and answer.text.startswith(text)
    assert state(coordination) == before


def test_in_step_there_is_no_delay_bound() -> None:
    coordination = Coordination(replace(TERMS, delay_bound=3), epoch=7)
    ((_, answer),) = coordination.join(hello(0).model_copy(update={"workers": 2, "staleness": 0}), 0.0)
    assert isinstance(answer, msg.Denied) and "start the coordinator without --delay-bound" in answer.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_bound": 0},
        {"rate": 0.0},
        {"batch_s": -1.0},
        {"dead_s": math.nan},
        {"server_rate": 0.0},
        {"most_waiting": 0},
    ],
)
def test_terms_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Terms(**wrong)
