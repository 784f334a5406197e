"""Refusals of the barrier-free optimizer and what it leaves to BytePS's own, with its messages."""

from __future__ import annotations

import copy
import itertools
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

from prophet_byteps import hook
from prophet_scheduler.frontends.torch import optimizer as late_optimizer
from prophet_scheduler.frontends.torch import updates as torch_updates
from support.torch_network import (
    Network,
    NoCompression,
    average,
    gradient_of,
    loss_of,
    make_model,
    pair,
    train,
    weight_of,
    wrap,
)


class OwnStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OwnName(torch.optim.SGD):
    """Keeps torch's step()."""


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"compression": OwnName}, "uses a compression other than fp16"),
        ({"environ": "BYTEPS_ENABLE_ASYNC"}, "BYTEPS_ENABLE_ASYNC"),
        ({"module": "byteps.torch.cross_barrier"}, "cross_barrier"),
        ({"make": OwnStep}, "OwnStep has a step()"),
        ({"make": torch.optim.LBFGS}, "LBFGS cannot"),
        ({"make": torch.optim.SparseAdam}, "SparseAdam cannot"),
        ({"differentiable": True}, "differentiable"),
        ({"alone": True}, ""),
    ],
)
def test_unsupported_optimizers_fall_back_with_one_warning(
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    reason: str,
) -> None:
    model = make_model()
    settings = {"differentiable": True} if "differentiable" in change else {}
    bare = change.get("make", OwnName)(model.parameters(), lr=0.1, **settings)
    if "environ" in change:
        monkeypatch.setenv(change["environ"], "1")
    if "module" in change:
        monkeypatch.setitem(sys.modules, change["module"], types.ModuleType("m"))
    network.workers = 1 if "alone" in change else 2
    for _ in range(2):
        assert wrap(network, model, bare, compression=change.get("compression", NoCompression)) is bare
    assert network.fell_back == [bare, bare]
    assert len(caplog.records) == (1 if reason else 0)
    assert reason in caplog.text


def test_a_failed_import_falls_back_with_one_warning(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Parts of optimizers are imported with the first one."""
    monkeypatch.setitem(sys.modules, "prophet_byteps.torch.optimizer", None)
    model = make_model()
    bare = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        assert wrap(network, model, bare) is bare
    assert network.fell_back == [bare, bare]
    (line,) = caplog.messages
    assert line.startswith(
        "Prophet: this optimizer keeps BytePS's barrier: Prophet's cannot be loaded (ModuleNotFoundError: "
    )


def test_a_subclass_that_keeps_step_needs_no_fallback(network: Network) -> None:
    model = make_model()
    optimizer = wrap(network, model, OwnName(model.parameters(), 0.1))
    assert not network.fell_back
    assert isinstance(optimizer, OwnName)
    assert type(optimizer).__name__ == "OwnName"
    assert optimizer.__module__ == network.DistributedOptimizer.__module__ == "byteps.torch"


def test_duplicate_names_keep_bytepss_error(network: Network) -> None:
    model = make_model()
    named = [("twice", p) for p in model.parameters()]
    with pytest.raises(ValueError, match="must be unique"):
        network.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), named_parameters=named)


def test_a_long_wait_is_reported_once(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    clock = iter(range(0, 10**6, 45))
    monkeypatch.setattr(torch_updates, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    assert optimizer.state_dict()
    assert caplog.messages == ["Prophet: still waiting for the gradient of 0.weight after 60 s"]


def test_torchs_profiler_shows_a_wait(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    with torch.profiler.profile() as profiler:
        assert optimizer.state_dict()
    shown = [event for event in profiler.events() if event.name == "Prophet waits for 0.weight"]
    assert len(shown) == 1 and shown[0].time_range.elapsed_us() > 0


def test_flush_gives_up_after_its_limit(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    with monkeypatch.context() as silent:
        silent.setattr(hook, "wait_activity", lambda limit_s: None)
        assert not optimizer._prophet.flush(patience_s=0.0)
    assert optimizer._prophet.flush(patience_s=60.0), "the network moves again"


def test_flush_goes_on_while_averages_arrive_though_nothing_else_tells(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a worker without the hook: 2 s for each average, and 10 s for all of them."""
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    assert len(network.flying) > 5
    clock = itertools.count(step=2)
    monkeypatch.setattr(torch_updates, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(hook, "progress", lambda: None)
    assert optimizer._prophet.flush(patience_s=5.0)
    assert not network.flying


def test_changing_gradients_that_have_left_is_reported(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    truth, plain, model, optimizer = twins = pair(network)
    train(truth, plain, 2, 1)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    assert "call optimizer.synchronize() before changing them" in caplog.text
    assert twins.alike()


def test_a_frozen_or_added_parameter_is_updated_by_its_own_gradient(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].requires_grad_(False)
    optimizer = wrap(network, model, torch.optim.SGD(model[:2].parameters(), 0.1))
    train(model, optimizer, steps=1)
    model[1].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.3})
    assert "not averaged" in caplog.text
    for number in range(1, 4):
        before = copy.deepcopy(dict(model.state_dict()))
        optimizer.zero_grad()
        loss_of(model, number).backward()
        local = {i: gradient_of(weight_of(model[i])).clone() for i in range(3)}
        optimizer.step()
        assert torch.equal(weight_of(model[2]), before["2.weight"].add(local[2], alpha=-0.3))
        assert torch.equal(weight_of(model[1]), before["1.weight"].add(local[1], alpha=-0.1))
        assert torch.equal(weight_of(model[0]), before["0.weight"].add(average(local[0]), alpha=-0.1))


def test_sparse_gradients_are_refused_by_name(network: Network) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    _optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1))
    model.zero_grad()  # before, it would be added to the zeros that BytePS begins with
    with pytest.raises(ValueError, match="is sparse"):
        model(torch.tensor([1, 2])).sum().backward()


@pytest.mark.parametrize("first", ["base", "subclass", "subclass of a subclass"])
def test_a_subclass_that_keeps_torchs_step_has_it_whoever_is_made_first(first: str) -> None:
    """torch wraps step() in the class of the first optimizer of a family."""

    def step(self: Any, closure: Any = None) -> None:
        pass

    # A family of its own, as torch.optim's is before any optimizer was made.
    base = type("Base", (torch.optim.Optimizer,), {"step": step, "__module__": "torch.optim.base"})
    kept = type("Kept", (base,), {})
    further = type("Further", (kept,), {})
    family: dict[str, Any] = {"base": base, "subclass": kept, "subclass of a subclass": further}
    model = make_model()
    for kind in (family[first], *family.values()):
        optimizer = kind(model.parameters(), {})
        assert late_optimizer.step_owner(type(optimizer)) is base
    own = type("Own", (kept,), {"step": lambda self, closure=None: None})
    assert late_optimizer.step_owner(type(own(model.parameters(), {}))) is own
