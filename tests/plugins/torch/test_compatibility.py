"""Tests of what is checked in a torch before Prophet takes its reducer's place."""

from __future__ import annotations

import inspect
import types

import pytest

torch = pytest.importorskip("torch")

from prophet_ddp import compatibility
from prophet_ddp.compatibility import check_torch, missing_names, unknown_requests

MODULE = torch.nn.parallel.distributed


def changed(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> types.ModuleType:
    """Return torch's module as a release would have it that calls `old` `new`."""
    source = inspect.getsource(MODULE).replace(old, new)
    assert new in source
    monkeypatch.setattr(inspect, "getsource", lambda module: source)
    module: types.ModuleType = MODULE
    return module


def test_this_torch_has_all_that_is_needed() -> None:
    assert missing_names(MODULE) == []
    assert unknown_requests(MODULE) == []
    findings = check_torch("torch")
    assert [(item, ok) for item, ok, _ in findings] == [
        ("DistributedDataParallel", True),
        ("Prophet for DDP", True),
        ("NCCL", True),
    ]
    assert torch.__version__ in findings[0][2]
    assert "tried on one GPU only" in findings[2][2]


def test_an_attribute_that_was_renamed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_names(changed(monkeypatch, ".static_graph", ".fixed_graph")) == [
        "DistributedDataParallel().static_graph"
    ]


def test_a_method_that_was_renamed_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(MODULE.DistributedDataParallel, "_ddp_init_helper")
    assert missing_names(MODULE) == ["DistributedDataParallel._ddp_init_helper"]
    rows = list(compatibility._findings())
    assert rows[-1][:2] == ("Prophet for DDP", False)
    assert "_ddp_init_helper" in rows[-1][2]


def test_a_new_request_to_the_reducer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = changed(monkeypatch, "self.reducer.prepare_for_forward()", "self.reducer.begin_forward()")
    assert unknown_requests(module) == ["begin_forward"]
