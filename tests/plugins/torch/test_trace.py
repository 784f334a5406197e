"""What a forward pass's trace says of each gradient, on a clock of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from prophet.core.network import Network
from prophet.policies.algorithms.tictac import graph_time, tao
from prophet_ddp import trace
from prophet_ddp.trace import PASSED_OVER, TRACED, ForwardTrace


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(trace, "time", clock)
    return clock


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    hooks = dict(torch_module._global_forward_pre_hooks)
    yield
    assert dict(torch_module._global_forward_pre_hooks) == hooks


class Layer(nn.Linear):
    """Takes so many seconds of the clock; `again` is called within it."""

    def __init__(self, clock: Clock, seconds: float, again: nn.Module | None = None, bias: bool = True) -> None:
        super().__init__(2, 2, bias)
        self.clock, self.seconds = clock, seconds
        self.again = [again]

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        for other in self.again:
            flow = flow if other is None else other(flow)
        self.clock.now += self.seconds
        return super().forward(flow)


def run(traced: ForwardTrace, model: nn.Module, clock: Clock, times: int) -> None:
    for _ in range(times):
        traced.begins()
        model(torch.zeros(1, 2))
        traced.ends()
        clock.now += 10.0  # backward, and what is not forward


def test_each_layer_takes_what_it_takes(clock: Clock) -> None:
    layers = [Layer(clock, 0.5), Layer(clock, 0.25), Layer(clock, 1.0)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], layers[2])
    traced = ForwardTrace(model, list(model.parameters()))
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert not traced.done and traced.forward_s() is None
    traced.begins()
    # A weight and its bias are used at once: what the layer takes comes after both.
    assert traced.done and traced.forward_s() == [0.0, 0.5, 0.0, 0.25, 0.0, 1.0]


def test_a_first_iteration_and_a_slow_one_do_not_count(clock: Clock) -> None:
    layer = Layer(clock, 7.0)
    model = nn.Sequential(layer)
    traced = ForwardTrace(model, list(model.parameters()))
    run(traced, model, clock, PASSED_OVER)
    layer.seconds = 1.0
    run(traced, model, clock, TRACED - 1)
    layer.seconds = 90.0
    run(traced, model, clock, 1)
    traced.begins()
    assert traced.forward_s() == [0.0, 1.0]


def test_what_is_called_outside_a_synchronised_forward_is_passed_over(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 1.0), Layer(clock, 2.0))
    traced = ForwardTrace(model, list(model.parameters()))
    for _ in range(PASSED_OVER + TRACED):
        run(traced, model, clock, 1)
        model[1](torch.zeros(1, 2))  # An evaluation, or what checkpointing computes again.
    traced.begins()
    assert traced.forward_s() == [0.0, 1.0, 0.0, 2.0]


def test_a_parameter_that_is_used_early_is_needed_early(clock: Clock) -> None:
    """In registration order the last layer; used first, and so is what lies in front of it."""
    last = Layer(clock, 1.0)
    first = Layer(clock, 2.0, again=last)
    model = nn.Sequential(first)
    params = [*first.parameters(recurse=False), *last.parameters()]
    model.register_module("last", None)
    traced = ForwardTrace(nn.ModuleList([first, last]), params[2:] + params[:2])
    run(traced, first, clock, PASSED_OVER + TRACED)
    traced.begins()
    # `last` is called within `first`, whose time began before: both are needed when `first` begins.
    assert traced.forward_s() == [0.0, 0.0, 0.0, 3.0]


def test_only_what_is_averaged_counts_and_a_shared_weight_once(clock: Clock) -> None:
    layers = [Layer(clock, 1.0), Layer(clock, 1.0)]
    layers[1].weight = layers[0].weight
    frozen = Layer(clock, 4.0)
    model = nn.Sequential(layers[0], frozen, layers[1])
    traced = ForwardTrace(model, [layers[0].weight, layers[0].bias, layers[1].bias])
    run(traced, model, clock, PASSED_OVER + TRACED)
    traced.begins()
    assert traced.forward_s() == [0.0, 5.0, 1.0]


def test_a_trace_can_be_given_up(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 1.0))
    traced = ForwardTrace(model, list(model.parameters()))
    run(traced, model, clock, 2)
    traced.begins()
    traced.remove()  # In the middle of a forward pass, which a compilation may begin.
    traced.ends()
    assert traced.done and traced.forward_s() is None and traced.graph() is None
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert traced.forward_s() is None


class Branches(nn.Module):
    """A short branch that is registered first and a long one, and a layer that waits for both."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.short, self.long, self.both = (Layer(clock, seconds, bias=False) for seconds in (0.001, 5.0, 1.0))

    def forward(self, flow: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        return {"out": [self.both(self.short(flow) + self.long(flow))]}


def test_the_graph_is_that_of_the_forward_pass_with_its_times(clock: Clock) -> None:
    model = Branches(clock)
    traced = ForwardTrace(model, list(model.parameters()), with_graph=True)
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert traced.graph() is None
    traced.begins()
    graph = traced.graph()
    assert graph is not None
    assert [(transfer.name, transfer.size_bytes) for transfer in graph.transfers] == [
        ("gradient0", 16),
        ("gradient1", 16),
        ("gradient2", 16),
    ]
    assert sum(operation.time_s for operation in graph.computing) == pytest.approx(6.001)
    # The long branch computes while the rest is received.
    assert tao(graph, graph_time(Network(bandwidth=100.0))) == {"gradient1": 0, "gradient0": 1, "gradient2": 2}


def test_without_one_of_the_parameters_there_is_no_graph(clock: Clock) -> None:
    model = Branches(clock)
    other = Layer(clock, 1.0)
    traced = ForwardTrace(model, [*model.parameters(), other.weight], with_graph=True)
    run(traced, model, clock, PASSED_OVER + TRACED)
    traced.begins()
    assert traced.forward_s() is not None and traced.graph() is None


def test_a_module_that_is_gone_is_not_kept(clock: Clock) -> None:
    model = Branches(clock)
    traced = ForwardTrace(model, list(model.parameters()), with_graph=True)
    assert traced.alive
    del model
    gc.collect()
    assert not traced.alive
    traced.remove()
