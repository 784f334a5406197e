"""What is in flight when a process ends is waited for."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, Operation


class Work:
    """Of an operation that ends when the test says so."""

    def __init__(self) -> None:
        self.future = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future


def test_drained_is_when_the_last_operation_in_flight_has_ended() -> None:
    group: Any = None
    issuer, works = Issuer(group, EventLog(open=False)), [Work(), Work()]
    assert issuer.drain(0.0)
    operations = [Operation(lambda work=work: work) for work in works]  # type: ignore[misc]
    never = Operation(lambda: None)
    issuer.append([*operations, never])
    for operation in operations:
        issuer.ready(operation)
    assert not issuer.drain(0.0)
    works[0].future.set_result(None)
    assert not issuer.drain(0.0)
    works[1].future.set_result(None)
    assert issuer.drain(0.0), "what was never ready is not in flight"


def test_an_operation_that_failed_is_not_waited_for() -> None:
    group: Any = None
    issuer, work = Issuer(group, EventLog(open=False)), Work()
    operation = Operation(lambda: work)
    issuer.append([operation])
    issuer.ready(operation)
    work.future.set_exception(RuntimeError("connection closed by peer"))
    assert not issuer.drain(60.0)
