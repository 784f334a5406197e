"""Cases that test_hook_plans.py runs in processes of their own: `python hook_plan_cases.py CASE CORE`.

Each case drives the hook over the stand-in for BytePS's core, which is CORE.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prophet_byteps.hook import Hook
from prophet_byteps.library import HookError, inspect_library
from prophet_scheduler.core.event_record import RecordBuffer
from prophet_scheduler.core.events import NO_PLAN, EventKind, QueueEvent
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.plan_codec import encode_plan
from prophet_scheduler.simulate.replay import replay

PUSH, PULL, COPY = 6, 7, 9
WATCHDOG_S = 1e6  # none, however slow the machine


class Job:
    """A worker whose core, loops and server are the test's."""

    def __init__(self, core: Path) -> None:
        library = inspect_library(core)
        self.hook = Hook.load()
        self.core = ctypes.CDLL(str(core))
        self.core.core_get.restype = ctypes.c_int64
        self.core.core_add_push.argtypes = [ctypes.c_uint64, ctypes.c_int, ctypes.c_uint, ctypes.c_int]
        self.hook.attach(library, WATCHDOG_S)
        self.core.core_start()
        self.kept = RecordBuffer(1 << 21)

    def add(self, gradient: int, size: int = 100) -> None:
        self.core.core_add_push(gradient << 16, 0, size, 1)

    def get(self, stage: int) -> int:
        """The gradient that the stage's loop gets, or -1."""
        return int(self.core.core_get(stage)) >> 16

    def take_up(self, plan: Plan) -> int:
        taken = self.hook.set_plan(plan)
        self.kept.keep_plan(taken.number, taken.encoded)
        return taken.number

    def drain(self) -> None:
        self.kept.keep(self.hook.drain())


def refused(job: Job) -> None:
    job.hook.set_plan(Plan(push=QueuePlan(order={})))
    good = encode_plan(Plan(push=QueuePlan(order={3: 0, 1: 1})))
    for encoded in (b"", b"plan", good[:-1], good + b"\0", good[:8] + b"\7" + good[9:]):
        try:
            job.hook.set_encoded_plan(encoded)
        except HookError as error:
            assert str(error).startswith("the hook cannot take a plan: "), error
        else:
            raise AssertionError(encoded)
    assert job.hook.status().active
    for gradient in (3, 1):
        job.add(gradient)
    assert [job.get(PUSH), job.get(PUSH)] == [1, 3], "the plan before stays"
    events = job.hook.drain()
    assert int((events["kind"] == QueueEvent.PLAN).sum()) == 1


def logged(job: Job) -> None:
    assert job.take_up(Plan(push=QueuePlan(order={}))) == 0
    job.add(3)
    assert job.take_up(Plan(push=QueuePlan(order={}), pull=QueuePlan(order={}))) == 1
    first = job.hook.drain()
    kinds = [QueueEvent.PLAN, EventKind.ADD, QueueEvent.PLAN]
    assert first["kind"].tolist() == kinds and first["gradient"].tolist() == [0, 3, 1]
    assert job.get(PUSH) == 3
    job.core.core_finish(PUSH)
    assert job.get(PULL) == 3
    job.core.core_finish(PULL)
    job.core.core_transfer(5)
    empty = job.hook.drain()
    empty = empty[empty["kind"] == QueueEvent.EMPTY]
    assert empty["gradient"].tolist() == [1], "once between two drains, with the plan in force"


def replayed(job: Job) -> None:
    choose = random.Random(5)
    waiting = 0
    lost = 0
    for step in range(6000):
        if step % 500 == 100:
            credit = choose.choice([None, 1, 150, 600])
            groups = {number: number // 4 for number in range(24)} if choose.random() < 0.4 else {}
            job.take_up(
                Plan(
                    push=QueuePlan(order={} if choose.random() < 0.8 else None, credit=credit, groups=groups),
                    pull=QueuePlan(order={}, credit=credit),
                    generation_s={number: (24 - number) * 1e-3 for number in range(24)},
                    size_bytes=dict.fromkeys(range(24), 100),
                    network=choose.choice([None, Network(1e6, 1e-5)]),
                )
            )
        if step % 1500 == 1499:  # suspended and resumed
            job.core.core_stop()
            for stage in (PUSH, PULL):
                job.core.core_lose(stage)
            job.core.core_start()
            waiting = 0
            lost += 1
        if waiting < 40:
            job.add(23 - step % 24)
            waiting += 1
        for stage in (PUSH, PULL):
            if choose.random() < 0.8 and job.get(stage) >= 0:
                job.core.core_finish(stage)
                waiting -= stage == PULL
        if step % 300 == 0:
            job.drain()
    job.drain()
    record = job.kept.record(WATCHDOG_S, job.hook.most_in_flight)
    kinds = record.events["kind"]
    assert int((kinds == QueueEvent.FORGOTTEN).sum()) == lost
    result = replay(record)
    starts = int(np.count_nonzero(kinds == EventKind.START))
    assert (result.same, result.differences, result.unchecked) == (starts, (), ()), result
    assert starts > 2000 and result.plans == 12
    assert record.events["gradient"][kinds == QueueEvent.PLAN].max() == 11 < NO_PLAN


def overflowed(job: Job) -> None:
    """More happens between two drains than the log holds: the rest is checked from where nothing was there."""
    job.take_up(Plan(push=QueuePlan(order={})))
    job.core.core_transfer(180_000)
    job.drain()
    for gradient in (5, 4):
        job.add(gradient)
    assert job.get(PUSH) == 4, "what was lost is known to have left nothing only when that is said"
    job.core.core_finish(PUSH)
    assert job.get(PULL) == 4 and job.get(PUSH) == 5
    job.core.core_finish(PULL)
    job.core.core_finish(PUSH)
    assert job.get(PULL) == 5
    job.core.core_finish(PULL)
    job.core.core_transfer(100)
    job.drain()
    record = job.kept.record(WATCHDOG_S, job.hook.most_in_flight)
    result = replay(record)
    (unchecked,) = result.unchecked
    assert (result.same, result.differences) == (200, ())
    assert unchecked.first == 0 and record.events["kind"][unchecked.end] == QueueEvent.EMPTY
    assert unchecked.lost == job.hook.status().events_dropped > 0


CASES: dict[str, Callable[[Job], None]] = {
    "refused": refused,
    "logged": logged,
    "replayed": replayed,
    "overflowed": overflowed,
}

if __name__ == "__main__":
    CASES[sys.argv[1]](Job(Path(sys.argv[2])))
