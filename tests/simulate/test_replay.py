"""The replay of a record: what the queue decided is decided again, and what somebody else decided is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from prophet_scheduler.core._native import Exchange
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.event_record import EventRecord
from prophet_scheduler.core.events import BOTH_LANES, EVENT_DTYPE, NO_PLAN, EventKind, QueueEvent, QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.policies import get_policy, policy_names
from prophet_scheduler.simulate import Cluster, Costs, Options, SimulatedRun, simulate
from prophet_scheduler.simulate.cluster import compute_scale
from prophet_scheduler.simulate.job import job_of_cut
from prophet_scheduler.simulate.replay import Task, Unchecked, replay, story
from support.profiles import resnet50

PUSH, PULL = QueueKind.PUSH, QueueKind.PULL
ADD, START, FINISH = EventKind.ADD, EventKind.START, EventKind.FINISH


def run_of(policy: str | None, exchange: Exchange = Exchange.SYNCHRONOUS, watchdog_s: float = 1.0) -> SimulatedRun:
    profile = resnet50(5_000_000)
    links = {f"worker{number}": ((0.0, 10e6), (12.0, 20e6)) for number in range(2)}
    servers = 0 if exchange is Exchange.COLLECTIVE else 1
    cluster = Cluster(2, servers, links, Costs(1e-4, 1e-4), exchange)
    options = Options(iterations=40, watchdog_s=watchdog_s, compute_scale=compute_scale(2, 40, jitter=0.05, seed=1))
    scheduler = None if policy is None else get_policy(policy)
    return simulate(job_of_cut(profile, Cut.uniform(131072)), cluster, scheduler, options)


def starts(record: EventRecord) -> int:
    return int(np.count_nonzero(record.events["kind"] == START))


@pytest.mark.parametrize("policy", [None, *policy_names()])
def test_a_simulated_schedule_is_decided_as_it_was(policy: str | None) -> None:
    run = run_of(policy)
    result = replay(run.record)
    assert (result.same, result.differences, result.unchecked) == (starts(run.record), (), ())
    assert result.same > 1000
    assert result.plans == run.plans + (policy is not None)


def test_plans_are_taken_up_in_mid_job() -> None:
    run = run_of("prophet")
    assert run.plans >= 2, "the other tests would be of one plan only"
    assert story(replay(run.record)) == [f"{starts(run.record):,} decisions under {run.plans + 1} plans, all the same"]


def test_one_channel_of_all_workers_is_decided_as_it_was() -> None:
    run = run_of("prophet", Exchange.COLLECTIVE)
    assert replay(run.record).same == starts(run.record) > 500


def test_what_the_watchdog_released_is_released_again() -> None:
    run = run_of("p3", watchdog_s=0.01)
    assert run.watchdog_releases > 0
    assert replay(run.record).same == starts(run.record)
    assert replay(replace(run.record, watchdog_s=1.0)).differences


def test_another_plan_decides_otherwise() -> None:
    run = run_of("prophet")
    fifo = {number: encode_plan(Plan()) for number in run.record.plans}
    assert replay(replace(run.record, plans=fifo)).differences


def plan_row(time_s: float, number: int = 0, kind: QueueEvent = QueueEvent.PLAN, gap: int = 0) -> tuple[float, ...]:
    return (time_s, number, 0, 0, BOTH_LANES, kind, gap)


def task_row(time_s: float, gradient: int, kind: EventKind, gap: int = 0, queue: QueueKind = PUSH) -> tuple[float, ...]:
    return (time_s, gradient, 10, 0, queue, kind, gap)


FORWARD = encode_plan(Plan(push=QueuePlan(order={}, credit=10), pull=QueuePlan(order={})))


def record_of(*rows: tuple[float, ...], plan: bytes = FORWARD) -> EventRecord:
    return EventRecord(np.array(list(rows), EVENT_DTYPE), {0: plan})


def test_another_order_is_named_with_its_event() -> None:
    result = replay(
        record_of(
            plan_row(0.0),
            task_row(1.0, 7, ADD),
            task_row(1.0, 3, ADD),
            task_row(1.5, 7, START),
            task_row(2.0, 7, FINISH),
            task_row(2.0, 3, START),
        )
    )
    (difference,) = result.differences
    assert (difference.index, difference.recorded, difference.decided) == (3, Task(7, 0, 10), Task(3, 0, 10))
    assert story(result) == [
        "1 decision under 1 plan, 1 different",
        "event 3 at 1.500000 s: the push of gradient 7, partition 0 started, but the queue would start gradient 3, "
        "partition 0",
        "events 4 to 5: 1 decisions not checked, after a difference",
    ]


def test_a_start_that_credit_forbids_is_a_difference() -> None:
    rows = [plan_row(0.0), task_row(1.0, 3, ADD), task_row(1.0, 4, ADD), task_row(1.0, 3, START)]
    early, late = task_row(1.5, 4, START), task_row(2.0, 4, START)
    assert replay(record_of(*rows, task_row(1.8, 3, FINISH), late)).same == 2
    result = replay(record_of(*rows, early))
    assert result.same == 1
    assert story(result)[1].endswith("the queue would start nothing before 2.000000 s")


def test_a_finish_without_a_start_is_a_difference() -> None:
    result = replay(record_of(plan_row(0.0), task_row(1.0, 3, ADD), task_row(2.0, 3, FINISH)))
    assert [difference.unknown for difference in result.differences] == [True]
    assert story(result)[1].endswith("finished without having started")


def test_pushes_let_requests_go_first_in_a_record_as_well() -> None:
    second_each = Network(10.0)
    busy = encode_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={}), network=second_each))
    rows = [
        plan_row(0.0),
        task_row(1.0, 3, ADD),
        task_row(1.0, 3, START),
        task_row(1.0, 4, ADD),
        task_row(1.0, 4, START),
        task_row(1.0, 5, ADD),
        task_row(1.2, 3, FINISH),
        task_row(1.2, 3, ADD, queue=PULL),
    ]
    push, pull = task_row(1.2, 5, START), task_row(1.2, 3, START, queue=PULL)
    in_order = record_of(*rows, pull, push, plan=busy)
    assert (replay(in_order).same, replay(in_order).differences) == (4, ())
    raced = record_of(*rows, push, pull, plan=busy)
    assert [difference.index for difference in replay(raced).differences] == [8]


def test_a_host_that_was_long_about_its_pulls_is_believed() -> None:
    """Pulls may not have been asked for in vain between two that came, and then the second makes no push wait."""
    plan = encode_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={}, credit=10), network=Network(10.0)))
    rows = [plan_row(0.0)]
    for gradient in (3, 4, 5):
        rows += [task_row(1.0, gradient, ADD), task_row(1.0, gradient, START)]
    rows += [task_row(1.0, 6, ADD)]
    rows += [task_row(1.2, 3, FINISH), task_row(1.2, 3, ADD, queue=PULL), task_row(1.3, 3, START, queue=PULL)]
    rows += [task_row(1.4, 4, FINISH), task_row(1.4, 4, ADD, queue=PULL)]
    believed = record_of(*rows, task_row(1.4, 6, START), plan=plan)
    assert replay(believed).differences == ()
    # Before the first of all there was none that made pushes wait.
    first = [row for row in rows if row[0] < 1.3]
    result = replay(record_of(*first, task_row(1.2, 6, START), plan=plan))
    assert [difference.index for difference in result.differences] == [len(first)]


def test_after_lost_events_the_replay_begins_again_where_nothing_was_there() -> None:
    result = replay(
        record_of(
            plan_row(0.0),
            task_row(1.0, 3, ADD),
            task_row(1.0, 3, START),
            task_row(9.0, 5, START, gap=40),  # what there is besides 5 is not known
            task_row(9.5, 5, FINISH),
            plan_row(9.5, kind=QueueEvent.EMPTY),
            task_row(10.0, 8, ADD),
            task_row(10.0, 2, ADD),
            task_row(10.0, 2, START),
        )
    )
    assert (result.same, result.differences) == (2, ())
    assert result.unchecked == (Unchecked(3, 5, 1, 40),)
    assert story(result)[1] == "events 3 to 4: 1 decisions not checked, after 40 lost events"


def test_what_an_engine_had_that_is_gone_is_forgotten() -> None:
    rows = [plan_row(0.0), task_row(1.0, 3, ADD), task_row(1.0, 3, START), task_row(1.0, 4, ADD)]
    again = [task_row(5.0, 9, ADD, gap=1), task_row(5.0, 9, START)]
    result = replay(record_of(*rows, plan_row(4.0, kind=QueueEvent.FORGOTTEN), *again))
    assert (result.same, result.differences, result.unchecked) == (2, (), ())
    # More than that one event is missing: the queue may have had something.
    lost = [task_row(5.0, 9, ADD, gap=3), task_row(5.0, 9, START)]
    result = replay(record_of(*rows, plan_row(4.0, kind=QueueEvent.FORGOTTEN), *lost))
    assert result.unchecked == (Unchecked(5, 7, 1, 2),)


def test_a_record_that_begins_with_a_gap_is_not_checked_at_first() -> None:
    result = replay(record_of(task_row(1.0, 3, START, gap=7), plan_row(2.0, kind=QueueEvent.EMPTY)))
    assert (result.same, result.unchecked) == (0, (Unchecked(0, 1, 1, 7),))
    assert story(result)[0] == "0 decisions under 0 plans, none that could be checked"


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (record_of(plan_row(0.0, 5)), "names plan 5 but does not contain it"),
        (record_of(plan_row(0.0), plan=b"plan"), "plan 0 of the record cannot be read: the plan is cut short"),
        (record_of(task_row(1.0, 3, ADD), plan_row(2.0, NO_PLAN, QueueEvent.EMPTY)), "event 1 says that the queue is"),
    ],
)
def test_a_record_that_cannot_be_is_one_line(record: EventRecord, line: str) -> None:
    with pytest.raises(UserError, match=line):
        replay(record)
