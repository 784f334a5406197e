"""Cases of plans on their way to the native hook and in its record, which test_hook.py runs (hook_core.py)."""

from __future__ import annotations

import random
import sys

import numpy as np

from plugins.byteps.hook_core import NEVER_S, PULL, PUSH, Core, case, main
from prophet_byteps import hook as hook_module
from prophet_byteps.hook import Hook
from prophet_byteps.library import HookError
from prophet_scheduler.core.event_record import RecordBuffer
from prophet_scheduler.core.events import NO_PLAN, EventKind, QueueEvent
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.simulate.replay import replay


def take_up(hook: Hook, kept: RecordBuffer, plan: Plan) -> None:
    kept.keep_plan(*hook.set_plan(plan))


@case
def a_plan_that_cannot_be_read_is_refused_with_a_line(hook: Hook, core: Core) -> None:
    hook.set_plan(Plan(push=QueuePlan(order={})))
    good = encode_plan(Plan(push=QueuePlan(order={3: 0, 1: 1})))
    for encoded in (b"", b"plan", good[:-1], good + b"\0", good[:8] + b"\7" + good[9:]):
        vars(hook_module)["encode_plan"] = lambda _plan, encoded=encoded: encoded
        try:
            hook.set_plan(Plan())
        except HookError as error:
            assert str(error).startswith("the hook cannot take a plan: "), error
        else:
            raise AssertionError(encoded)
    assert hook.status().active
    core.add(3, 1)
    assert core.drain(PUSH) == [1, 3], "the plan before stays"
    events = hook.drain()
    assert int((events["kind"] == QueueEvent.PLAN).sum()) == 1


@case
def plans_and_an_empty_queue_are_in_the_log(hook: Hook, core: Core) -> None:
    assert hook.set_plan(Plan(push=QueuePlan(order={})))[0] == 0
    core.add(3)
    assert hook.set_plan(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={})))[0] == 1
    first = hook.drain()
    kinds = [QueueEvent.PLAN, EventKind.ADD, QueueEvent.PLAN]
    assert first["kind"].tolist() == kinds and first["gradient"].tolist() == [0, 3, 1]
    assert core.gradient(PUSH) == 3
    core.finish(PUSH)
    assert core.gradient(PULL) == 3
    core.finish(PULL)
    core.transfer(5)
    empty = hook.drain()
    empty = empty[empty["kind"] == QueueEvent.EMPTY]
    assert empty["gradient"].tolist() == [1], "once between two drains, with the plan in force"


@case
def a_recorded_job_is_replayed(hook: Hook, core: Core) -> None:
    kept = RecordBuffer(1 << 21)
    choose = random.Random(5)
    waiting = 0
    lost = 0
    for step in range(6000):
        if step % 500 == 100:
            credit = choose.choice([None, 1, 150, 600])
            groups = {number: number // 4 for number in range(24)} if choose.random() < 0.4 else {}
            take_up(
                hook,
                kept,
                Plan(
                    push=QueuePlan(order={} if choose.random() < 0.8 else None, credit=credit, groups=groups),
                    pull=QueuePlan(order={}, credit=credit),
                    generation_s={number: (24 - number) * 1e-3 for number in range(24)},
                    size_bytes=dict.fromkeys(range(24), 100),
                    network=choose.choice([None, Network(1e6, 1e-5)]),
                ),
            )
        if step % 1500 == 1499:  # suspended and resumed
            core.stop()
            for stage in (PUSH, PULL):
                core.lose(stage)
            core.start()
            waiting = 0
            lost += 1
        if waiting < 40:
            core.add(23 - step % 24)
            waiting += 1
        for stage in (PUSH, PULL):
            if choose.random() < 0.8 and core.gradient(stage) >= 0:
                core.finish(stage)
                waiting -= stage == PULL
        if step % 300 == 0:
            kept.keep(hook.drain())
    kept.keep(hook.drain())
    record = kept.record(NEVER_S, hook.most_in_flight)
    kinds = record.events["kind"]
    assert int((kinds == QueueEvent.FORGOTTEN).sum()) == lost
    result = replay(record)
    starts = int(np.count_nonzero(kinds == EventKind.START))
    assert (result.same, result.differences, result.unchecked) == (starts, (), ()), result
    assert starts > 2000 and result.plans == 12
    assert record.events["gradient"][kinds == QueueEvent.PLAN].max() == 11 < NO_PLAN


@case
def dropped_events_are_not_checked(hook: Hook, core: Core) -> None:
    """More happens between two drains than the log holds: the rest is checked from where nothing was there."""
    kept = RecordBuffer(1 << 21)
    take_up(hook, kept, Plan(push=QueuePlan(order={})))
    core.transfer(180_000)
    kept.keep(hook.drain())
    core.add(5, 4)
    assert core.gradient(PUSH) == 4, "what was lost is known to have left nothing only when that is said"
    core.finish(PUSH)
    assert core.gradient(PULL) == 4 and core.gradient(PUSH) == 5
    core.finish(PULL)
    core.finish(PUSH)
    assert core.gradient(PULL) == 5
    core.finish(PULL)
    core.transfer(100)
    kept.keep(hook.drain())
    record = kept.record(NEVER_S, hook.most_in_flight)
    result = replay(record)
    (unchecked,) = result.unchecked
    assert (result.same, result.differences) == (200, ())
    assert unchecked.first == 0 and record.events["kind"][unchecked.end] == QueueEvent.EMPTY
    assert unchecked.lost == hook.status().events_dropped > 0


if __name__ == "__main__":
    main(*sys.argv[1:3])
