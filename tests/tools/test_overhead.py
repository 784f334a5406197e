"""Counts of the job that measures the cost of being watched; `make overhead` runs the job."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from prophet_scheduler.core.settings import Settings
from tools.overhead import ANSWERING, VARIANTS, mean_s, settings_of, threads_s, timed


def test_what_happens_once_a_second_counts_and_what_the_machine_does_besides_does_not() -> None:
    assert mean_s([1.0] * 49 + [50.0]) == 1.0
    assert mean_s([1.0] * 40 + [2.0] * 10) == pytest.approx(1.2, rel=0.02)
    assert mean_s([3.0]) == 3.0


def test_what_is_on_in_a_turn() -> None:
    base = Settings("prophet", status=True)
    told = {variant: settings_of(variant, base, Path("record"), 9000) for variant in VARIANTS}
    assert not told["nothing"].watched
    assert [variant for variant in VARIANTS if told[variant].status] == ["status", "top", "all"]
    assert [variant for variant in VARIANTS if told[variant].record] == ["record", "all"]
    assert [variant for variant in VARIANTS if told[variant].metrics_port] == ["metrics", "all"]


def test_calls_are_timed_while_they_are_looked_at_and_no_longer() -> None:
    class Log:
        def note(self, text: str, *, more: str = "") -> str:
            return text + more

        def other(self) -> None: ...

    log = Log()
    with timed(log, "note", "other") as took:
        assert [log.note("a"), log.note("b", more="c")] == ["a", "bc"]
    log.note("c")
    assert len(took["note"]) == 2 and took["other"] == []
    assert all(0 < seconds < 60 for seconds in took["note"])


def test_calls_of_all_of_a_kind_are_timed_by_the_clock_of_their_own_thread() -> None:
    class Work:
        def turn(self, rounds: int) -> int:
            return sum(range(rounds))

    with timed(Work, "turn", clock=time.thread_time) as took:
        assert Work().turn(100_000) == sum(range(100_000))
        thread = threading.Thread(target=Work().turn, args=(100_000,))
        thread.start()
        thread.join()
    assert len(took["turn"]) == 2 and min(took["turn"]) > 0


def test_only_threads_that_watch_count() -> None:
    def work() -> None:
        sum(range(100_000))
        done.set()
        over.wait()

    took = []
    for name in ("another", "prophet-status"):
        done, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, name=name)
        thread.start()
        done.wait()
        took.append(threads_s())
        over.set()
        thread.join()
    assert took[0] == 0 < took[1]
    assert threads_s((ANSWERING,)) == 0.0, "it has ended"
