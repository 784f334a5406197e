"""Tests of what is waited for before BytePS goes, with a stand-in for MXNet's wait."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from prophet_mxnet.byteps import ending

PATIENCE_S = 0.05
BLOCKED_S = 120.0
"""Only a failing test waits that long."""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def bps(said: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The functions of byteps.mxnet that begin and end a job; the end of the process is noted, not registered."""
    module = SimpleNamespace(at_ends=[])

    def function(name: str, **settings: Any) -> tuple[str, dict[str, Any]]:
        said.append(name)
        return name, settings

    def at_end(what: Callable[[], object]) -> None:
        said.append("then an end")
        module.at_ends.append(what)

    for name in ("init", "shutdown", "suspend"):
        setattr(module, name, functools.partial(function, name))
    monkeypatch.setattr("prophet_scheduler.frontends.ending.at_end", at_end)
    return module


def test_mxnet_is_done_before_byteps_goes(bps: Any, said: list[str]) -> None:
    ending.wait_for_mxnet_first(bps, lambda: said.append("waited"))
    assert bps.init(lazy=True) == ("init", {"lazy": True})
    assert said == ["init", "then an end"], "BytePS's own end, which comes after, is registered by then"
    assert bps.suspend() == ("suspend", {})
    assert bps.shutdown() == ("shutdown", {})
    assert said[2:] == ["waited", "suspend", "waited", "shutdown"]
    (at_the_end,) = bps.at_ends
    at_the_end()
    assert said[6:] == ["waited"]


def test_waiting_for_a_worker_that_is_gone_ends_with_a_warning(
    bps: Any, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    never = threading.Event()

    def waitall() -> None:
        never.wait(BLOCKED_S)

    ending.wait_for_mxnet_first(bps, waitall, PATIENCE_S)
    with caplog.at_level(logging.WARNING, "prophet_scheduler"):
        bps.shutdown()
    never.set()
    assert said == ["shutdown"]
    assert caplog.messages == ["Prophet: transfers were still outstanding when the job ended, and 0 s later"]


def test_an_error_of_mxnet_does_not_stop_the_end(bps: Any, said: list[str], caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise RuntimeError("Operator gave up\nStack trace: ...")

    ending.wait_for_mxnet_first(bps, fails)
    with caplog.at_level(logging.WARNING, "prophet_scheduler"):
        bps.shutdown()
    assert said == ["shutdown"]
    assert caplog.messages == ["Prophet: MXNet failed when the job ended: Operator gave up"]
