"""Tests that a read of a parameter after step() sees its update, however late that arrives."""

from __future__ import annotations

import _thread
import copy
import io
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support.torch_network import (
    Network,
    Plain,
    batch,
    check_that_nothing_stays,
    loss_of,
    pair,
    plain_sgd,
    same,
    same_model,
    train,
    twins_of,
    weight_of,
    wrap,
)


@pytest.mark.parametrize(
    "read",
    [
        lambda model: [p.detach().clone() for p in model.parameters()],
        lambda model: [p.detach().clone() for _, p in model.named_parameters()],
        lambda model: [v.clone() for k, v in model.state_dict().items() if "running" not in k and "num" not in k],
        lambda model: [p.detach() for p in copy.deepcopy(model).parameters()],
        lambda model: [p.detach() for p in torch.load(_saved(model), weights_only=False).parameters()],
        lambda model: [p.clone() for i in (0, 2, 3, 5) for p in (model[i].weight, model[i].bias)],
        lambda model: list(nn.utils.parameters_to_vector(model.parameters()).detach().split(1)),
        lambda model: [p.detach() for p in torch.optim.swa_utils.AveragedModel(model).module.parameters()],
        lambda model: [p.detach().float() for p in model.double().parameters()],
    ],
)
def test_every_way_to_read_a_parameter_sees_the_update(network: Network, read: Callable[[nn.Module], Any]) -> None:
    twins = pair(network)
    twins.train(2, 1)
    assert network.flying
    assert same(read(twins.model), read(twins.truth))
    assert not network.flying


def _saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file


def test_reading_one_parameter_waits_for_that_one_only(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    network.newest_first = True
    assert next(model.parameters()).device.type == "cpu"
    assert len(network.flying) == 7


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_evaluation_between_two_steps(network: Network, mode: Callable[[], Any]) -> None:
    """An update in a forward pass ignores the modes of the pass, both in the state it makes and in its arithmetic."""
    outputs = []
    twins = twins_of(network, lambda params: torch.optim.Adafactor(params, 0.1))
    updates = twins.optimizer._prophet
    updates._probation._left = 0
    for some_model, some_optimizer in twins.sides:
        for number in range(4):
            some_model.train()
            some_optimizer.zero_grad()
            loss_of(some_model, number).backward()
            for slot in updates._order:
                slot.eager = False
            some_optimizer.step()
            if number % 2 == 0:
                some_model.eval()
                with mode():
                    outputs.append(some_model(batch(9)[0]))
    assert same(outputs[:2], outputs[2:])
    assert twins.alike()


class Functional(nn.Module):
    """Uses a layer's weight without calling the layer, before the layer's own call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.layer = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)
        self.lstm = nn.LSTM(6, 6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.linear(inputs, self.layer.weight) + self.layer.bias
        result: torch.Tensor = self.head(self.lstm(self.layer(hidden))[0])
        return result


def test_functional_use_waits_too(any_order: Network) -> None:
    twins = twins_of(any_order, plain_sgd, Functional)
    twins.train()
    assert len(any_order.flying) == 8, "no parameter of this model needs the barrier"
    assert twins.alike()


class Listed(nn.Module):
    """Keeps its own list of its parameters, as recurrent layers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.weight = nn.Parameter(torch.randn(6, 6))
        self.bias = nn.Parameter(torch.randn(6))
        self.all = [self.weight, self.bias]
        self.head = nn.Linear(6, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(inputs @ self.all[0] + self.all[1])
        return result


def test_averages_that_have_arrived_are_applied_in_one_call(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, model, optimizer = twins = twins_of(network, plain_sgd, Listed)
    twins.train(steps=4)
    assert len(network.flying) == 4
    while network.flying:
        network.deliver()
    updates: list[list[int]] = []
    inner = optimizer._prophet._step_without_hooks

    def noted(part: torch.optim.Optimizer) -> None:
        updates.append([len(group["params"]) for group in part.param_groups])
        inner(part)

    monkeypatch.setattr(optimizer._prophet, "_step_without_hooks", noted)
    model(batch(5)[0])
    assert updates == [[4]], "not a call of the optimizer for each module, let alone parameter"
    twins.train(6, 1)
    del updates[:]
    network.newest_first = True  # Gradients appear last layer first, so the first layer's come first.
    assert optimizer.param_groups[0]["params"][0].data is not None
    assert updates == [[1]]
    assert len(network.flying) == 3
    assert twins.alike()


def test_a_use_that_was_missed_brings_the_barrier_back(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    _, _, model, optimizer = pair(network)
    weight = weight_of(model[0])
    train(model, optimizer, 2, 1)

    def use() -> None:
        """Use the weight in a thread that has no modes: nothing is noticed before the gradient is there."""
        (weight * 2).sum().backward()
        over.release()

    over = _thread.allocate_lock()
    over.acquire()
    _thread.start_new_thread(use, ())
    over.acquire()
    assert "0.weight was used before its update had arrived" in caplog.text
    optimizer.step()
    assert not network.flying
    train(model, optimizer, 3, 3)
    assert not network.flying


def test_a_model_that_is_gone_with_updates_to_come_leaves_nothing_once_they_are_back(network: Network) -> None:
    def start() -> None:
        _, _, model, optimizer = pair(network)
        train(model, optimizer, 2, 1)

    check_that_nothing_stays(network, start)


def test_a_dropped_optimizer_leaves_the_model_to_the_next_one(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)
    plain = Plain(torch.optim.SGD(truth.parameters(), 0.2))
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.2))
    train(truth, plain, 2, 3)
    train(model, optimizer, 2, 3)
    assert same_model(model, truth)


def test_reusing_the_memory_of_a_cleared_gradient_waits_for_nothing(network: Network) -> None:
    """A storage that is freed leaves its address to the next one, for example an activation's."""
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    network.newest_first = True
    under_way = len(network.flying)
    optimizer.zero_grad()
    held = []
    for _ in range(200):
        held.append(torch.zeros(3))
        held[-1].clone()
        assert len(network.flying) == under_way > 1


def test_gradients_that_the_program_cleared_hold_no_memory(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    kept = weakref.ref(model[0].weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    assert kept() is None


def _call(model: nn.Module) -> Callable[[torch.Tensor], Any]:
    return lambda inputs: model(inputs)


@pytest.mark.parametrize("after_reset", [False, True])
def test_a_compiled_function_brings_the_barrier_back(network: Network, after_reset: bool) -> None:
    """torch.compile may begin at any time; calls of what it makes of a function cannot be intercepted."""
    truth, plain, model, optimizer = twins = pair(network)
    train(truth, plain, 2, 6)
    train(model, optimizer, 2, 4)
    assert network.flying
    try:
        if after_reset:
            torch._dynamo.reset()
        compiled: Any = torch.compile(_call(model), backend="eager")
        train(compiled, optimizer, 6, 2)
    finally:
        torch._dynamo.reset()
    assert not network.flying
    assert twins.alike()
