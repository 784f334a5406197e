"""Tests of what the program waits for in BytePS's push_pull; BytePS is a function of the test's own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from prophet_byteps import agreement, exchange
from prophet_mxnet.byteps.exchange import MXNetExchange, watched

LIMIT_S = 10.0
"""Only a failing test waits that long."""


@pytest.fixture(autouse=True)
def of_mxnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has agreed on its start through byteps.mxnet."""
    monkeypatch.setitem(sys.modules, "byteps_played.ops", SimpleNamespace())
    pages = MXNetExchange(SimpleNamespace(__name__="byteps_played"))
    monkeypatch.setattr(agreement, "_active", SimpleNamespace(exchange=pages, renew=lambda rank, workers: None))


class Waits:
    """push_pull of a tensor that has yet to reach all workers: `call` returns when the test says so."""

    def __init__(self) -> None:
        self.inside, self.over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=watched(self._wait), daemon=True)
        self._thread.start()
        assert self.inside.wait(LIMIT_S)

    def _wait(self) -> None:
        self.inside.set()
        assert self.over.wait(LIMIT_S)

    def end(self) -> None:
        self.over.set()
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()


@pytest.fixture
def waits() -> Iterator[Callable[[], Waits]]:
    """Return a function that starts such a call in a thread of its own."""
    started: list[Waits] = []

    def start() -> Waits:
        started.append(Waits())
        return started[-1]

    yield start
    for each in started:
        each.end()


def test_a_tensor_is_under_way_while_its_call_waits(waits: Callable[[], Waits]) -> None:
    assert not agreement.under_way()
    first, second = waits(), waits()
    assert agreement.under_way()
    first.end()
    assert agreement.under_way()
    second.end()
    assert not agreement.under_way()


def test_a_call_that_fails_is_over() -> None:
    def fail(tensor: object) -> None:
        assert agreement.under_way()
        raise ValueError(f"no tensor: {tensor}")

    with pytest.raises(ValueError, match="no tensor: None"):
        watched(fail)(None)
    assert not agreement.under_way()


def test_calls_of_a_suspended_engine_are_not_under_way(waits: Callable[[], Waits]) -> None:
    old = waits()
    exchange.renew(SimpleNamespace(rank=lambda: 0, size=lambda: 2))
    assert not agreement.under_way()
    new = waits()
    old.end()
    assert agreement.under_way()
    new.end()
    assert not agreement.under_way()
