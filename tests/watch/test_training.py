"""Tests of what training threads report to an observer."""

from __future__ import annotations

import math
import threading

import pytest

from prophet_scheduler.watch import training
from prophet_scheduler.watch.training import NAMES_KEPT, TrainingLog


def test_first_optimizer_counts_iterations() -> None:
    log = TrainingLog()
    for time_s, source in enumerate(["generator", "critic", "generator"]):
        log.iteration_ended(source, float(time_s))
    assert (log.take_ends(), log.take_ends()) == ([0.0, 2.0], [])
    log.paused()
    assert math.isnan(log.take_ends()[0])


def test_waits_by_gradient() -> None:
    log = TrainingLog()
    log.waiting("first", 1.0)
    log.waiting("first", 1.5)
    wait = log.awaited()
    assert wait is not None and (wait.name, wait.since_s) == ("first", 1.0)
    assert log.waited_s() == {}
    log.waiting("second", 3.0)
    log.over(3.5)
    log.over(9.0)
    assert log.awaited() is None
    assert log.waited_s() == {"first": 2.0, "second": 0.5}
    log.waiting("first", 10.0)
    log.over(11.0)
    assert log.waited_s()["first"] == 3.0


def test_longest_waiting_thread_is_shown() -> None:
    log = TrainingLog()
    log.waiting("own", 2.0)
    other = threading.Thread(target=lambda: log.waiting("other", 1.0))
    other.start()
    other.join()
    wait = log.awaited()
    assert wait is not None and wait.name == "other"
    log.over(3.0)
    assert log.waited_s() == {"own": 1.0}


def test_number_of_names_is_limited() -> None:
    log = TrainingLog()
    for place in range(NAMES_KEPT + 5):
        log.waiting(str(place), 0.0)
        log.over(1.0)
    assert len(log.waited_s()) == NAMES_KEPT


def test_log_is_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_log", None)
    training.iteration_ended(0, 1.0)
    training.waiting("x", 1.0)
    training.over(2.0)
    training.paused()
    log = training.switch_on()
    assert training.switch_on() is log and log.take_ends() == []
    training.iteration_ended(0, 1.0)
    training.waiting("x", 1.0)
    training.over(2.0)
    assert (log.take_ends(), log.waited_s()) == ([1.0], {"x": 1.0})
