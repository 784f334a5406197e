"""The agent's thread: when it turns, and that it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from prophet_scheduler.frontends.turning import TurningThread

LIMIT_S = 30.0


def raise_it(error: Exception) -> None:
    raise AssertionError from error


def thread(
    turn: Callable[[], Any], pause_s: float = 3600.0, failed: Callable[[Exception], None] = raise_it
) -> TurningThread:
    return TurningThread(turn, lambda: pause_s, failed)


def test_a_turn_comes_after_each_pause_and_at_once_where_it_is_woken() -> None:
    turns = threading.Semaphore(0)
    often = thread(turns.release, pause_s=0.0)
    often.start()
    assert all(turns.acquire(timeout=LIMIT_S) for _ in range(3))
    assert often.end(LIMIT_S)
    woken = threading.Event()
    seldom = thread(woken.set)
    seldom.start()
    seldom.wake()
    assert woken.wait(LIMIT_S)
    assert seldom.end(LIMIT_S)


def test_no_turn_begins_after_the_end() -> None:
    turns: list[int] = []
    agent = thread(lambda: turns.append(1))
    assert not agent.started
    assert agent.end(0.0), "it never began"
    agent.start()
    assert agent.started
    assert agent.end(LIMIT_S)
    agent.wake()
    assert turns == []


def test_the_end_waits_for_a_turn_under_way_no_longer_than_its_limit() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def turn() -> None:
        entered.set()
        assert go_on.wait(LIMIT_S)

    agent = thread(turn, pause_s=0.0)
    agent.start()
    assert entered.wait(LIMIT_S)
    assert not agent.end(0.0)
    go_on.set()
    assert agent.end(LIMIT_S)


def test_a_failure_is_handed_on_once_and_is_the_last_turn() -> None:
    turns: list[int] = []
    failures: list[Exception] = []

    def turn() -> None:
        turns.append(1)
        raise ValueError("made for a test")

    agent = thread(turn, pause_s=0.0, failed=failures.append)
    agent.start()
    assert agent._thread is not None
    agent._thread.join(LIMIT_S)
    assert len(turns) == 1
    assert [str(failure) for failure in failures] == ["made for a test"]
    assert agent.end(0.0)


def test_what_turns_cost_is_counted() -> None:
    counted = threading.Event()

    def turn() -> None:
        if agent.busy_s > 0.0:
            counted.set()

    agent = thread(turn, pause_s=0.0)
    assert agent.busy_s == 0.0
    agent.start()
    assert counted.wait(LIMIT_S)
    assert agent.end(LIMIT_S)
