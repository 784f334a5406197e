"""Tensors under way in BytePS, by its handles; BytePS is the test's own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from prophet_byteps import agreement, exchange
from prophet_byteps.agreement import PAGE_BYTES
from prophet_byteps.exchange import TorchExchange


class Ops:
    """byteps.torch.ops: a handle is there until it is taken, and done when the test says so."""

    def __init__(self) -> None:
        self._handle_map: dict[int, Any] = {}
        self.done: set[int] = set()

    def push_pull_async_inplace(self, tensor: Any, average: bool, name: str, priority: int) -> int:
        handle = len(self._handle_map) + 1
        self._handle_map[handle] = (tensor, tensor)
        return handle

    def poll(self, handle: int) -> bool:
        if handle not in self._handle_map:
            raise ValueError(f"Handle {handle} was not created or has been cleared.")
        return handle in self.done

    def synchronize(self, handle: int) -> None:
        del self._handle_map[handle]


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> Ops:
    ops = Ops()
    monkeypatch.setitem(sys.modules, "byteps_played.ops", ops)
    monkeypatch.setattr(agreement, "_active", SimpleNamespace(exchange=made(), renew=lambda rank, workers: None))
    return ops


def made() -> TorchExchange:
    return TorchExchange(SimpleNamespace(__name__="byteps_played"))


def sent(ops: Ops) -> int:
    return ops.push_pull_async_inplace(torch.zeros(1), True, "a tensor", 0)


def test_a_tensor_is_under_way_until_it_is_back(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not agreement.under_way()
    handle = sent(ops)
    assert agreement.under_way()
    with monkeypatch.context() as alone:
        alone.setattr(agreement, "_active", None)
        assert not agreement.under_way(), "without other workers nothing is known"
    ops.done.add(handle)
    assert not agreement.under_way(), "it is back, though the program has not taken it"
    ops.synchronize(handle)
    assert not agreement.under_way()


def test_a_page_has_a_limit_of_its_own(ops: Ops) -> None:
    group: Any = agreement.active()
    answer = group.exchange.send("a page", bytes(PAGE_BYTES))
    (page,) = ops._handle_map
    assert not agreement.under_way()
    sent(ops)
    assert agreement.under_way()
    assert answer() is None
    ops.done.add(page)
    assert answer() == bytes(PAGE_BYTES)


def test_a_page_is_under_way_until_it_is_back_whoever_asks(ops: Ops) -> None:
    group: Any = agreement.active()
    sent(ops)
    assert not group.exchange.pages_under_way()
    group.exchange.send("a page", bytes(PAGE_BYTES))
    assert group.exchange.pages_under_way()
    ops.done.add(max(ops._handle_map))
    assert not group.exchange.pages_under_way()
    group.exchange.send("a page", bytes(PAGE_BYTES))
    assert agreement.under_way()
    exchange.renew(SimpleNamespace(rank=lambda: 0, size=lambda: 2))
    assert not group.exchange.pages_under_way(), "what was suspended gives nothing back"
    assert not agreement.under_way()
    sent(ops)
    assert agreement.under_way()


def test_a_handle_that_is_taken_meanwhile_is_not_under_way(ops: Ops, monkeypatch: pytest.MonkeyPatch) -> None:
    sent(ops)
    poll = ops.poll

    def taken_before(handle: int) -> bool:
        ops.synchronize(handle)
        return poll(handle)

    monkeypatch.setattr(ops, "poll", taken_before)
    assert not agreement.under_way()
