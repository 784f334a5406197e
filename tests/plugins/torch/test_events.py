"""The log between the threads that write and the one that learns."""

from __future__ import annotations

import numpy as np
import pytest

from prophet_ddp import events
from prophet_ddp.events import EventLog, Phase
from prophet_scheduler.core.events import EVENT_DTYPE, EventKind, QueueKind


def test_an_all_reduce_is_a_push_and_its_pull() -> None:
    log = EventLog(open=True)
    log.added(7, 4096, 1.0)
    log.started(7, 4096, 2.0)
    log.finished(7, 4096, 3.0)
    rows = log.drain()
    assert rows.dtype == EVENT_DTYPE
    assert rows["time_s"].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert rows["gradient"].tolist() == [7] * 4
    assert rows["bytes"].tolist() == [4096] * 4
    assert rows["kind"].tolist() == [EventKind.ADD, EventKind.START, EventKind.FINISH, EventKind.FINISH]
    assert rows["queue"].tolist() == [QueueKind.PUSH] * 3 + [QueueKind.PULL]
    assert not rows["gap"].any()
    assert len(log.drain()) == 0


def test_one_in_two_phases_is_a_push_and_then_a_pull() -> None:
    log = EventLog(open=True)
    for now, phase in ((1.0, Phase.REDUCE), (3.0, Phase.GATHER)):
        log.started(7, 2048, now, phase)
        log.finished(7, 2048, now + 1, phase)
    rows = log.drain()
    assert rows["time_s"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rows["kind"].tolist() == [EventKind.START, EventKind.FINISH] * 2
    assert rows["queue"].tolist() == [QueueKind.PUSH] * 2 + [QueueKind.PULL] * 2


def test_rows_come_in_order_of_time_whoever_wrote_them_first() -> None:
    log = EventLog(open=True)
    for now in (3.0, 1.0, 2.0):
        log.added(int(now), 4096, now)
    assert np.array_equal(log.drain()["gradient"], [1, 2, 3])


def test_where_some_are_lost_the_next_ones_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 2)
    log = EventLog(open=True)
    for now in range(5):
        log.added(now, 4096, float(now))
    assert log.drain()["gap"].tolist() == [0, 0], "these are whole"
    log.added(9, 4096, 9.0)
    assert log.drain()["gap"].tolist() == [3]
    log.added(10, 4096, 10.0)
    assert log.drain()["gap"].tolist() == [0]


def test_the_ends_of_rounds_come_with_their_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MOST_EVENTS", 4)
    log = EventLog(open=True)
    for now in (1.0, 3.0):
        log.added(0, 4096, now)
        log.round_ended(now + 1)
    log.added(1, 4096, 5.0)  # lost
    assert (log.drain()["time_s"].tolist(), log.round_ends) == ([1.0, 3.0], [2.0, 4.0])
    log.round_ended(6.0)
    assert (len(log.drain()), log.round_ends) == (0, [6.0])
    log.added(0, 4096, 7.0)
    assert (log.drain()["gap"].tolist(), log.round_ends) == ([1], []), "nothing between showed the loss"


@pytest.mark.parametrize("closed", [False, True])
def test_one_that_nobody_reads_keeps_nothing(closed: bool) -> None:
    log = EventLog(open=closed)
    log.added(1, 4096, 1.0)
    if closed:
        log.close()
    log.added(2, 4096, 2.0)
    assert len(log.drain()) == 0


def test_ends_of_forward_passes_are_kept_apart() -> None:
    log = EventLog(open=True)
    log.forward_ended(1.0)
    log.added(7, 4096, 1.5)
    log.forward_ended(2.0)
    assert log.drain()["time_s"].tolist() == [1.5]
    assert log.drain_forward_ends() == [1.0, 2.0]
    assert log.drain_forward_ends() == []
    log.close()
    log.forward_ended(3.0)
    assert log.drain_forward_ends() == []
