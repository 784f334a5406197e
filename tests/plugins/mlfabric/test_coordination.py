"""The coordinator's state machine by hand: its answers, and their times. Rates are 100 bytes per second."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_mlfabric import messages as msg
from prophet_mlfabric.coordination import MOST_KEPT, MOST_OPEN, Addressed, Coordination, Terms

TERMS = Terms(rate=100.0, dead_s=10.0, lease_s=30.0)


def hello(worker: int, incarnation: int = 1, version: int = 0) -> msg.Hello:
    return msg.Hello(tenant="job", worker=worker, incarnation=incarnation, node=f"machine{worker}", version=version)


def job(workers: int, terms: Terms = TERMS) -> Coordination:
    coordination = Coordination(terms, epoch=7)
    for worker in range(workers):
        coordination.join(hello(worker), 0.0)
    coordination.turn(0.0)
    return coordination


def ask(update: int = 0, size: int = 100, version: int = 0) -> msg.Ask:
    return msg.Ask(update=update, size_bytes=size, version=version)


def done(update: int = 0, version: int = 0, size: int = 100) -> msg.Done:
    return msg.Done(update=update, version=version, size_bytes=size)


def grants(said: list[Addressed]) -> list[tuple[int, msg.Grant]]:
    return [(worker, answer) for worker, answer in said if isinstance(answer, msg.Grant)]


def ask_and_turn(coordination: Coordination, worker: int, request: msg.Ask, now_s: float) -> list[int]:
    """Have a worker ask. Return the workers that get a grant then."""
    coordination.receive(worker, request, now_s)
    return [worker for worker, _ in grants(coordination.turn(now_s))]


def test_an_update_starts_at_once_on_an_idle_wire() -> None:
    coordination = job(1)
    assert coordination.receive(0, ask(), 5.0) == [(0, msg.Wait(update=0))]
    assert coordination.turn(5.0) == [(0, msg.Grant(update=0, version=0))]
    assert coordination.receive(0, done(), 6.1) == [(0, msg.Applied(update=0, version=1, delay=1))]


def test_a_busy_wire_gathers_a_batch_and_the_shortest_goes_first() -> None:
    coordination = job(3)
    ask_and_turn(coordination, 0, ask(size=1000), 0.0)
    coordination.receive(1, ask(size=500), 0.2)
    assert coordination.turn(0.2) == []
    assert coordination.next_s == pytest.approx(0.3)  # 100 ms after the first of them
    coordination.receive(2, ask(size=100), 0.25)
    assert coordination.turn(0.31) == []
    coordination.receive(0, done(size=1000), 9.0)
    ((worker, grant),) = grants(coordination.turn(9.0))
    assert (worker, grant.start_s) == (2, 0.0)
    assert coordination.next_s < 10.0
    assert coordination.receive(1, ask(size=500), 9.1) == [(1, msg.Wait(update=0))]


def test_a_batch_closes_when_the_wire_runs_out_of_work() -> None:
    coordination = job(2)
    ask_and_turn(coordination, 0, ask(size=5), 0.0)  # 50 ms
    ask_and_turn(coordination, 1, ask(size=5), 0.01)
    assert coordination.next_s == pytest.approx(0.048)
    ((worker, grant),) = grants(coordination.turn(0.048))
    assert worker == 1
    assert grant.start_s == pytest.approx(0.002)


def test_repeated_messages_count_once() -> None:
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


def test_an_update_without_a_grant_counts() -> None:
    coordination = job(2)
    coordination.receive(0, ask(update=3), 0.0)
    assert coordination.receive(1, done(update=9), 0.1) == [(1, msg.Applied(update=9, version=1, delay=1))]
    assert coordination.receive(0, done(update=3), 0.2) == [(0, msg.Applied(update=3, version=2, delay=2))]
    assert grants(coordination.turn(0.2)) == []
    assert (coordination.counts.ungranted, coordination.counts.greatest_delay) == (2, 0)


def test_late_updates_are_dropped_before_they_are_sent() -> None:
    coordination = job(3, replace(TERMS, delay_bound=1))
    for worker in range(3):
        coordination.receive(worker, ask(), 0.0)
    said = coordination.turn(0.0)
    assert [(worker, grant.dropped) for worker, grant in grants(said)] == [(2, True), (1, True), (0, False)]
    assert grants(coordination.receive(2, ask(), 0.1)) == [grants(said)[0]]
    assert coordination.counts.dropped == 2


def test_no_push_starts_that_could_delay_one_in_flight_too_long() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2, server_rate=1e6))
    coordination.receive(0, done(update=0), 0.0)  # version 1
    assert ask_and_turn(coordination, 0, ask(update=1, size=1000), 0.0) == [0]
    coordination.receive(1, ask(version=1), 0.1)
    # The wire has room for both, but if the first were overtaken, its delay would be 3.
    assert grants(coordination.turn(0.3)) == []
    coordination.receive(0, done(update=1), 9.0)
    assert [worker for worker, _ in grants(coordination.turn(9.0))] == [1]
    coordination.receive(1, done(version=1), 9.5)
    assert coordination.counts.greatest_delay == 2


def test_updates_without_a_grant_can_make_a_planned_one_too_late() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2))
    ask_and_turn(coordination, 0, ask(size=1000), 0.0)
    coordination.receive(1, ask(), 0.0)
    coordination.turn(0.1)
    coordination.receive(0, done(update=7), 0.2)
    assert [(worker, grant.dropped) for worker, grant in grants(coordination.turn(0.2))] == [(1, True)]


def test_a_dead_workers_grants_are_released() -> None:
    coordination = job(2)
    coordination.receive(0, ask(size=100_000), 0.0)
    assert ask_and_turn(coordination, 1, ask(size=200_000), 0.0) == [0]
    coordination.disconnected(0)
    for second in range(1, 12):
        said = coordination.turn(float(second))
    assert [worker for worker, _ in grants(said)] == [1]
    assert (coordination.counts.died, coordination.counts.lost) == (1, 1)
    # It was not dead, and its update had arrived, so the update counts.
    assert coordination.receive(0, done(size=100_000), 12.0) == [(0, msg.Applied(update=0, version=1, delay=1))]
    assert coordination.receive(0, done(size=100_000), 12.1) == [(0, msg.Applied(update=0, version=1, delay=1))]


def test_a_restarted_or_leaving_worker_has_no_open_updates() -> None:
    coordination = job(2)
    coordination.receive(0, ask(), 0.0)
    ask_and_turn(coordination, 1, ask(), 0.0)
    assert coordination.join(hello(0, incarnation=2), 0.1) == [(0, msg.Welcome(epoch=7, version=0))]
    assert [worker for worker, _ in grants(coordination.turn(0.1))] == [1]
    # Update 0 of the new incarnation is another update.
    assert coordination.receive(0, ask(), 0.2) == [(0, msg.Wait(update=0))]
    coordination.receive(1, msg.Bye(), 0.3)
    assert [worker for worker, _ in grants(coordination.turn(0.3))] == [0]


def test_a_worker_with_too_many_open_updates_is_refused_alone() -> None:
    coordination = job(2)
    ask_and_turn(coordination, 1, ask(size=10_000), 0.0)
    answers = [coordination.receive(0, ask(update=number), 0.0)[0][1] for number in range(MOST_OPEN)]
    assert all(isinstance(answer, msg.Wait) for answer in answers)
    before, refused = replace(coordination.counts), 10_000
    for _ in range(refused):
        coordination.receive(0, ask(update=MOST_OPEN), 0.0)
    assert (coordination.version, coordination.counts) == (0, replace(before, refused=refused))
    assert isinstance(coordination.receive(1, ask(update=1), 0.1)[0][1], msg.Wait)
    for worker, lost in ((0, MOST_OPEN), (1, MOST_OPEN + 2)):
        coordination.receive(worker, msg.Bye(), 0.2)
        assert coordination.counts.lost == lost, "all that were open, and no other"


def test_limits_of_workers_and_waiting_updates_hold() -> None:
    coordination = job(2, replace(TERMS, most_workers=2, most_waiting=1))
    assert isinstance(coordination.join(hello(2), 0.0)[0][1], msg.Denied)
    ask_and_turn(coordination, 0, ask(size=10_000), 0.0)
    assert isinstance(coordination.receive(1, ask(), 0.0)[0][1], msg.Wait)
    assert isinstance(coordination.receive(1, ask(update=1), 0.0)[0][1], msg.Denied)


def test_a_limited_number_of_finished_updates_is_remembered() -> None:
    coordination = job(1)
    for number in range(MOST_KEPT + 1):
        coordination.receive(0, done(update=number), 0.0)
    assert isinstance(coordination.receive(0, done(update=0), 0.0)[0][1], msg.Denied)
    assert isinstance(coordination.receive(0, done(update=1), 0.0)[0][1], msg.Applied)
    assert coordination.version == MOST_KEPT + 1


def test_a_restarted_coordinator_continues_its_workers_count() -> None:
    coordination = Coordination(TERMS, epoch=8)
    assert coordination.join(hello(0, version=41), 0.0) == [(0, msg.Welcome(epoch=8, version=41))]
    assert coordination.join(hello(1, version=40), 0.0) == [(1, msg.Welcome(epoch=8, version=41))]
    # Updates pushed meanwhile count on top of the newest version that a worker knows.
    coordination.receive(0, done(update=7), 0.1)
    assert coordination.join(hello(2, version=42), 0.2) == [(2, msg.Welcome(epoch=8, version=43))]
    # A version from this coordinator itself is not counted again.
    known = hello(0, version=43).model_copy(update={"epoch": 8})
    assert coordination.join(known, 0.3) == [(0, msg.Welcome(epoch=8, version=43))]


def test_a_following_job_starts_from_version_0() -> None:
    coordination = job(2, replace(TERMS, delay_bound=2))
    for update in range(5):
        coordination.receive(0, done(update, version=update), 0.0)
    for worker in range(2):
        coordination.receive(worker, msg.Bye(), 1.0)
    assert coordination.join(hello(0, incarnation=2), 2.0) == [(0, msg.Welcome(epoch=8, version=0))]
    coordination.receive(0, ask(), 2.0)
    assert [grant.dropped for _, grant in grants(coordination.turn(2.0))] == [False]


def test_a_refused_worker_begins_no_job() -> None:
    coordination = job(1)
    coordination.receive(0, done(), 0.0)
    coordination.receive(0, msg.Bye(), 1.0)
    ((_, answer),) = coordination.join(hello(0, incarnation=2).model_copy(update={"replicates": True}), 2.0)
    assert isinstance(answer, msg.Denied) and (coordination.version, coordination.epoch) == (1, 7)


def test_parting_tells_who_works_and_who_has_died() -> None:
    coordination = job(3)
    assert coordination.receive(0, msg.Bye(), 1.0) == [(0, msg.Parting(working=2))]
    coordination.disconnected(2)
    for second in range(1, 2 + int(TERMS.dead_s)):
        coordination.turn(float(second))
    end_s = 1.0 + TERMS.dead_s
    assert coordination.receive(0, msg.Bye(), end_s) == [(0, msg.Parting(working=1, died=(2,)))]
    nobody = msg.Parting(working=0, died=(2,))
    assert coordination.receive(1, msg.Bye(), end_s) == [(0, nobody), (1, nobody)]
    # It was not dead, and now the others have left without it.
    coordination.join(hello(2), end_s + 1)
    assert (2, nobody) in coordination.receive(2, msg.Bye(), end_s + 2)


def test_an_endless_push_is_given_up_and_counts_if_reported() -> None:
    coordination = job(1, replace(TERMS, delay_bound=1))
    ask_and_turn(coordination, 0, ask(), 0.0)
    said = [answer for second in range(1, 33) for answer in coordination.turn(float(second))]
    assert (said, coordination.counts.lost) == ([], 1)
    assert coordination.receive(0, ask(), 33.0) == [(0, msg.Wait(update=0))], "it may be asked for again"
    assert coordination.receive(0, done(), 33.1) == [(0, msg.Applied(update=0, version=1, delay=1))]


def test_a_worker_that_reconnects_in_time_keeps_its_grant() -> None:
    coordination = job(1)
    ask_and_turn(coordination, 0, ask(), 0.0)
    coordination.disconnected(0)
    coordination.turn(9.0)
    coordination.join(hello(0), 9.5)
    for second in range(10, 25):
        coordination.turn(float(second))
    assert coordination.counts.died == coordination.counts.lost == 0


def test_a_learned_rate_changes_the_next_start() -> None:
    coordination = job(2)
    ask_and_turn(coordination, 0, ask(), 0.0)
    coordination.receive(0, done(), 10.0)
    ask_and_turn(coordination, 0, ask(1, version=1), 10.0)
    coordination.receive(1, ask(size=900), 10.1)
    # Of the server's 100 bytes a second 90 are left beside the slow worker's update, so nobody has to wait for it.
    assert [worker for worker, _ in grants(coordination.turn(10.2))] == [1]
