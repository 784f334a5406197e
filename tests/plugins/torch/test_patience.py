"""Tests of how long a failing process goes on for other ranks, however much it has under way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from prophet_ddp import ends
from prophet_fsdp import takeover


class Stuck:
    """Issuer or wire on which nothing moves."""

    def __init__(self, asked: list[float | None]) -> None:
        self._asked = asked

    def quiet(self, patience_s: float | None) -> bool:
        self._asked.append(patience_s)
        return False

    def still(self, _limit_s: float) -> bool:
        return False

    def close(self, _limit_s: float) -> None:
        """End nothing."""

    def fail(self, _error: BaseException) -> None:
        """Raise it in nobody."""


WAYS: list[tuple[Any, str, Callable[[], None]]] = [
    (ends, "issuers", ends.process_ends),
    (ends, "issuers", lambda: ends.finish(())),
    (takeover, "_wires", vars(takeover)["_process_ends"]),
]


@pytest.mark.parametrize(("module", "name", "end"), WAYS)
def test_a_failing_process_is_patient_once(
    module: Any, name: str, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr(module, name, [Stuck(asked) for _ in range(3)])
    monkeypatch.setattr(sys, "last_value", ValueError("made for a test"), raising=False)
    end()
    assert asked[0] == ends.FAILED_PATIENCE_S
    assert set(asked[1:]) == {0.0}
