"""Tests of the order for all ranks: on a virtual clock, ranks ready at random issue the same operations and end."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_scheduler.core.events import EventKind, QueueKind
from prophet_scheduler.frontends.torch import recording
from prophet_scheduler.frontends.torch.recording import unrecorded
from prophet_scheduler.policies.algorithms.sequence import LEAST_AT_ONCE as AT_ONCE
from support.collectives import Program, Wire, Work

ROUNDS = 6


class Job:
    """Ranks that all-reduce `blocks` blocks in every round, in a sequence of its own, and delays from `seed`."""

    def __init__(self, seed: int, ranks: int, blocks: int) -> None:
        chance = random.Random(seed)
        self.blocks = blocks
        self.sequences = [chance.sample(range(blocks), blocks) for _ in range(ROUNDS)]
        self.wire = Wire(ranks, lambda rank, number: chance.choice([0.0, chance.random(), 10 * chance.random()]))
        self.logs = [EventLog(open=True) for _ in range(ranks)]
        self.issuers = [Issuer(RankGroups(group), log) for group, log in zip(self.wire.groups, self.logs, strict=True)]
        self.issued: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
        self.sums: list[list[float]] = [[] for _ in range(ranks)]
        for rank in range(ranks):
            self.wire.start(self._program(rank, random.Random(f"{seed} {rank}")))

    def _program(self, rank: int, chance: random.Random) -> Program:
        issuer = self.issuers[rank]
        before: dict[int, tuple[JointOperation, torch.Tensor]] = {}
        for number, sequence in enumerate(self.sequences):
            now: dict[int, tuple[JointOperation, torch.Tensor]] = {}
            for block in range(self.blocks):
                data = torch.zeros(1 + block)
                now[block] = self._operation(rank, number, block, data), data
            issuer.append([now[block][0] for block in sequence])
            for block in chance.sample(range(self.blocks), self.blocks):
                yield chance.choice([0.0, chance.random(), 20 * chance.random()])
                if block in before:
                    yield before[block][0]  # it has the memory of the last round's block
                operation, data = now[block]
                data.fill_(rank + number)
                issuer.ready(operation)
            if chance.random() < 0.5:
                # Forward waits, in an order of its own; other rounds begin without.
                for block in range(self.blocks):
                    yield now[block][0]
                    yield 0.1 * chance.random()
                    self.sums[rank].append(float(now[block][1][0]) - len(self.issuers) * number)
            before = now
        for operation, _ in before.values():
            yield operation

    def _operation(self, rank: int, number: int, block: int, data: torch.Tensor) -> JointOperation:
        def start() -> object:
            self.issued[rank].append((number, block))
            return self.issuers[rank].groups.all_reduce(data)

        return JointOperation(start, block, 4 * (1 + block))


@given(seed=st.integers(0, 1 << 32), ranks=st.integers(1, 4), blocks=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_all_ranks_issue_the_agreed_sequence_and_everything_ends(seed: int, ranks: int, blocks: int) -> None:
    job = Job(seed, ranks, blocks)
    assert job.wire.run() == [], "nobody waits for ever"
    agreed = [(number, block) for number, sequence in enumerate(job.sequences) for block in sequence]
    assert job.issued == [agreed] * ranks
    assert job.wire.most_in_flight <= AT_ONCE
    assert {total for sums in job.sums for total in sums} <= {sum(range(ranks))}, "sums are of the same round and block"
    for issuer, log in zip(job.issuers, job.logs, strict=True):
        assert issuer.ended == len(agreed)
        events = log.drain()
        ended = events[(events["kind"] == EventKind.FINISH) & (events["queue"] == QueueKind.PULL)]
        assert len(ended) == len(agreed)


@given(seed=st.integers(0, 1 << 32), ranks=st.integers(2, 4), failing=st.integers(0, ROUNDS * 5 - 1))
@settings(max_examples=50, deadline=None)
def test_an_error_reaches_who_waits_and_nothing_more_is_issued(seed: int, ranks: int, failing: int) -> None:
    job = Job(seed, ranks, 5)
    job.wire.failing = failing
    job.wire.run()
    for rank, issuer in enumerate(job.issuers):
        for _ in range(2):
            with pytest.raises(ConnectionError, match="closed by peer"):
                issuer.wait_activity(60.0)
        assert failing < len(job.issued[rank]) < failing + AT_ONCE + ROUNDS * 5
        count = len(job.issued[rank])
        late = job._operation(rank, 99, 0, torch.zeros(1))
        issuer.append([late])
        issuer.ready(late)
        assert len(job.issued[rank]) == count


def alone() -> tuple[Wire, Issuer]:
    wire = Wire(1, lambda rank, number: 0.0)
    return wire, Issuer(RankGroups(wire.groups[0]), EventLog(open=False))


def test_operations_that_end_as_they_begin_do_not_nest() -> None:
    _, issuer = alone()

    def ended() -> object:
        work = Work()
        work.future.end()
        return work

    operations = [JointOperation(ended, ready=True) for _ in range(5000)]
    issuer.append(operations)
    assert issuer.ended == 5000
    assert all(operation.done for operation in operations)


def test_what_follows_one_that_is_not_ready_waits() -> None:
    wire, issuer = alone()
    first, second = (JointOperation(lambda: issuer.groups.all_reduce(torch.zeros(1))) for _ in range(2))
    issuer.append([first, second])
    issuer.ready(second)
    wire.run()
    assert not second.done
    issuer.ready(first)
    wire.run()
    assert first.done
    assert second.done


def test_an_operation_that_cannot_be_issued_is_an_error_for_who_waits() -> None:
    _, issuer = alone()

    def start() -> object:
        raise ValueError("no such group")

    operation = JointOperation(start)
    issuer.append([operation])
    issuer.ready(operation)
    assert issuer.still(0.0)
    with pytest.raises(ValueError, match="no such group"):
        issuer.quiet()
    with pytest.raises(ValueError, match="no such group"):
        issuer.wait_activity(60.0)


def test_an_interrupt_while_one_is_issued_comes_through_and_ends_the_sequence() -> None:
    _, issuer = alone()

    def start() -> object:
        raise KeyboardInterrupt

    operation = JointOperation(start)
    issuer.append([operation])
    with pytest.raises(KeyboardInterrupt):
        issuer.ready(operation)
    assert issuer.quiet(), "the program has been told"
    with pytest.raises(KeyboardInterrupt):
        issuer.wait_activity(60.0)


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupt_while_torch_is_asked_to_call_back_leaves_nothing_in_flight(before: bool) -> None:
    wire, issuer = alone()
    asked: list[object] = []
    ends: list[None] = []

    class Future:
        def __init__(self, future: Any) -> None:
            self._future = future

        def add_done_callback(self, callback: Any) -> None:
            if not (before and not asked):
                self._future.add_done_callback(callback)
            asked.append(callback)
            if len(asked) == 1:
                raise KeyboardInterrupt

    class Work:
        def __init__(self, work: Any) -> None:
            self._work = work

        def get_future(self) -> Future:
            return Future(self._work.get_future())

    operation = JointOperation(lambda: Work(issuer.groups.all_reduce(torch.zeros(1))), then=lambda: ends.append(None))
    issuer.append([operation])
    with pytest.raises(KeyboardInterrupt):
        issuer.ready(operation)
    assert len(asked) == 2 and not issuer.still(0.0)
    wire.run()
    assert issuer.still(0.0) and operation.done and len(ends) == 1


def test_who_waits_issues_what_an_interrupt_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    wire, issuer = alone()
    operation = JointOperation(lambda: issuer.groups.all_reduce(torch.zeros(1)))
    issuer.append([operation])

    with monkeypatch.context() as patch:
        patch.setattr(issuer, "_issue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            issuer.ready(operation)
    issuer.wait_activity(0.0)
    wire.run()
    assert operation.done


def test_an_interrupt_while_one_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(open=True)
    wire = Wire(1, lambda rank, number: 0.0)
    issuer = Issuer(RankGroups(wire.groups[0]), log)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(log, "finished", interrupted)
    operation = JointOperation(lambda: issuer.groups.all_reduce(torch.zeros(1)), size_bytes=4, ready=True)
    issuer.append([operation])
    with contextlib.suppress(KeyboardInterrupt):  # as torch does
        wire.run()
    with pytest.raises(KeyboardInterrupt):
        issuer.wait_activity(60.0)


def test_the_end_tells_of_an_error_that_nobody_was_told_of_and_only_then() -> None:
    wire, issuer = alone()
    wire.failing = 0
    issuer.put(lambda: issuer.groups.all_reduce(torch.zeros(1)))
    wire.run()
    assert issuer.still(0.0)
    with pytest.raises(ConnectionError):
        issuer.quiet()
    assert issuer.quiet(), "the program knows"


def test_torch_has_something_in_hand_until_it_ends() -> None:
    wire, issuer = alone()
    issuer.put(lambda: issuer.groups.all_reduce(torch.zeros(1)))
    assert not issuer.still(0.0)
    wire.run()
    assert issuer.still(0.0)


def test_what_an_operation_does_at_its_end_may_fail() -> None:
    wire, issuer = alone()

    def put_back() -> None:
        raise ValueError("does not fit")

    operation = JointOperation(lambda: issuer.groups.all_reduce(torch.zeros(1)), then=put_back, ready=True)
    issuer.append([operation])
    wire.run()
    assert not operation.done
    with pytest.raises(ValueError, match="does not fit"):
        issuer.wait_activity(60.0)


def test_quiet_leaves_what_has_no_data_yet() -> None:
    wire, issuer = alone()
    first, second = (JointOperation(lambda: issuer.groups.all_reduce(torch.zeros(1))) for _ in range(2))
    issuer.append([first, second])
    assert issuer.quiet(), "nothing is under way"
    issuer.ready(first)
    assert not issuer.quiet(patience_s=0.0), "nothing moves"
    wire.run()
    assert issuer.quiet(patience_s=0.0)
    assert not second.done


def test_each_thread_that_waits_learns_of_every_end() -> None:
    wire, issuer = alone()
    issuer.put(lambda: issuer.groups.all_reduce(torch.zeros(1)))
    wire.run()
    issuer.wait_activity(60.0)
    other = threading.Thread(target=issuer.wait_activity, args=(60.0,), daemon=True)
    other.start()
    other.join(30.0)
    assert not other.is_alive(), "it had not been told before"


def test_giving_up_ends_a_wait() -> None:
    _, issuer = alone()
    issuer.fail(RuntimeError("the process group ended"))
    issuer.fail(ValueError("of its making"))
    with pytest.raises(RuntimeError, match="the process group ended"):
        issuer.wait_activity(60.0)


def names_of(profile: torch.profiler.profile) -> set[str]:
    return {event.name for event in profile.events()}


def note(name: str) -> None:
    with torch.profiler.record_function(name):
        torch.ones(1)


@pytest.mark.parametrize("ready_first", [True, False])
def test_no_profiler_sees_an_operation_which_may_outlast_it(ready_first: bool) -> None:
    """The profiler's observer would write, at the operation's end, to memory that the profiler has freed by then."""
    wire, issuer = alone()
    data = torch.zeros(3)

    def start() -> object:
        note("operation")
        return issuer.groups.all_reduce(data)

    operation = JointOperation(start, ready=ready_first)
    with torch.profiler.profile() as profile:
        note("before")
        issuer.append([operation])
        issuer.ready(operation)
        note("after")
    wire.run()
    assert operation.done
    assert names_of(profile) >= {"before", "after"}
    assert "operation" not in names_of(profile)


def test_the_switch_of_recording_stays_the_programs() -> None:
    wire, issuer = alone()
    switch = vars(torch.autograd)["_enable_record_function"]
    with torch.profiler.profile() as profile:
        switch(False)
        try:
            issuer.put(lambda: issuer.groups.all_reduce(torch.zeros(1)))
            note("hidden")
        finally:
            switch(True)
        with pytest.raises(KeyboardInterrupt):
            issuer.put(interrupted)
        note("seen")
    wire.run()
    assert "hidden" not in names_of(profile)
    assert "seen" in names_of(profile)


def interrupted() -> object:
    raise KeyboardInterrupt


def gloo_pair() -> list[Any]:
    store: Any = vars(dist)["HashStore"]()
    groups: list[Any] = [None, None]

    def connect(rank: int) -> None:
        groups[rank] = dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    other = threading.Thread(target=connect, args=(1,))
    other.start()
    connect(0)
    other.join()
    return groups


def test_gloo_tells_the_profiler_nothing_of_an_operation() -> None:
    groups = gloo_pair()
    issuer = Issuer(RankGroups(groups[0]), EventLog(open=False))
    with torch.profiler.profile() as profile:
        operation = issuer.put(lambda: issuer.groups.all_reduce(torch.ones(4)))
        with unrecorded():
            groups[1].allreduce([torch.ones(4)]).wait()
        while not operation.done:
            issuer.wait_activity(60.0)
    assert not [name for name in names_of(profile) if name.startswith(("gloo", "c10d"))]


@pytest.mark.skipif(recording._STOPS_SAFELY, reason="tracemalloc.stop() is safe there")
def test_a_thread_of_torchs_keeps_its_state_of_pythons() -> None:
    groups, here, calls = gloo_pair(), threading.local(), []
    issuer = Issuer(RankGroups(groups[0]), EventLog(open=False))

    def then() -> None:
        here.calls = getattr(here, "calls", 0) + 1
        calls.append(here.calls)

    count = 16  # Many more than gloo has threads.
    data = [torch.ones(4) for _ in range(count)]
    for each in data:
        operation = JointOperation(functools.partial(issuer.groups.all_reduce, each), then=then, ready=True)
        issuer.append([operation])
    for _ in range(count):
        groups[1].allreduce([torch.ones(4)]).wait()
    while not operation.done:
        issuer.wait_activity(60.0)
    assert max(calls) > 1
