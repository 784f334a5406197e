"""Tests of what a forward pass's trace says of each gradient, on a clock of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

from prophet_papers.algorithms.tictac.ordering import graph_time, tao
from prophet_scheduler.core.cut import Block, Borders, Cut, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.frontends.torch import awaited, trace
from prophet_scheduler.frontends.torch.trace import PASSED_OVER, TRACED, ForwardTrace


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
    hooks, told = dict(torch_module._global_forward_pre_hooks), list(awaited._before)
    yield
    assert dict(torch_module._global_forward_pre_hooks) == hooks and awaited._before == told


class Layer(nn.Linear):
    """Layer that takes `seconds` of the clock, and calls `again` within its own forward."""

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
        out = model(torch.zeros(1, 2))
        traced.ends()
        clock.now += 10.0  # backward, and what is not forward
        torch.stack(tree_leaves(out)).sum().backward()


def whole_trace(
    model: nn.Module, clock: Clock, params: Sequence[torch.Tensor] = (), with_graph: bool = False
) -> ForwardTrace:
    """Return a trace that is done, of the model's parameters or of these."""
    traced = ForwardTrace(list(params or model.parameters()), with_graph)
    run(traced, model, clock, PASSED_OVER + TRACED)
    traced.begins()
    return traced


def whole(params: Sequence[torch.Tensor]) -> list[Block]:
    """Return blocks of one gradient each."""
    sizes = [param.nbytes for param in params]
    return blocks_of(sizes, ["f"] * len(sizes), Borders.of_gradients(sizes))


def test_each_layer_takes_what_it_takes(clock: Clock) -> None:
    layers = [Layer(clock, 0.5), Layer(clock, 0.25), Layer(clock, 1.0)]
    model = nn.Sequential(layers[0], nn.ReLU(), layers[1], layers[2])
    traced = ForwardTrace(list(model.parameters()))
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert not traced.done and traced.forward_s() is None
    traced.begins()
    # A weight and its bias are used at once: the layer's time comes after both.
    assert traced.done and traced.forward_s() == [0.0, 0.5, 0.0, 0.25, 0.0, 1.0]


def test_a_first_iteration_and_a_slow_one_do_not_count(clock: Clock) -> None:
    layer = Layer(clock, 7.0)
    model = nn.Sequential(layer)
    traced = ForwardTrace(list(model.parameters()))
    run(traced, model, clock, PASSED_OVER)
    layer.seconds = 1.0
    run(traced, model, clock, TRACED - 1)
    layer.seconds = 90.0
    run(traced, model, clock, 1)
    traced.begins()
    assert traced.forward_s() == [0.0, 1.0]


def test_what_is_called_outside_a_synchronised_forward_is_passed_over(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 1.0), Layer(clock, 2.0))
    traced = ForwardTrace(list(model.parameters()))
    for _ in range(PASSED_OVER + TRACED):
        run(traced, model, clock, 1)
        model[1](torch.zeros(1, 2))  # An evaluation, or a recomputation by checkpointing.
    traced.begins()
    assert traced.forward_s() == [0.0, 1.0, 0.0, 2.0]


def test_a_parameter_that_is_used_early_is_needed_early(clock: Clock) -> None:
    """The layer that is registered last is used first, together with the layer that calls it."""
    last = Layer(clock, 1.0)
    first = Layer(clock, 2.0, again=last)
    model = nn.Sequential(first)
    params = [*first.parameters(recurse=False), *last.parameters()]
    model.register_module("last", None)
    traced = whole_trace(first, clock, params[2:] + params[:2])
    # `last` is called within `first`, whose time began before: both are needed when `first` begins.
    assert traced.forward_s() == [0.0, 0.0, 0.0, 3.0]


def test_only_what_is_averaged_counts_and_a_shared_weight_once(clock: Clock) -> None:
    layers = [Layer(clock, 1.0), Layer(clock, 1.0)]
    layers[1].weight = layers[0].weight
    frozen = Layer(clock, 4.0)
    model = nn.Sequential(layers[0], frozen, layers[1])
    traced = whole_trace(model, clock, [layers[0].weight, layers[0].bias, layers[1].bias])
    assert traced.forward_s() == [0.0, 5.0, 1.0]


def test_a_trace_can_be_given_up(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 1.0))
    traced = ForwardTrace(list(model.parameters()))
    run(traced, model, clock, 2)
    traced.begins()
    traced.remove("why")  # In the middle of a forward pass, where a compilation may begin.
    traced.ends()
    blocks = whole(list(model.parameters()))
    assert traced.done and traced.forward_s() is None and traced.forward_of(blocks) is None
    assert traced.graph(blocks) is None and traced.why_not == "why"
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert traced.forward_s() is None


def test_a_trace_whose_model_is_gone_is_over(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 1.0))
    traced = ForwardTrace(list(model.parameters()))
    run(traced, model, clock, 1)
    traced.begins()
    traced.abandon()
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert traced.done and traced.forward_s() is None
    traced._remove()  # The hooks would stay until the process ends.


class Branches(nn.Module):
    """A short branch that is registered first and a long one, and a layer that waits for both."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.short, self.long, self.both = (Layer(clock, seconds, bias=False) for seconds in (0.001, 5.0, 1.0))

    def forward(self, flow: torch.Tensor) -> dict[str, list[torch.Tensor]]:
        return {"out": [self.both(self.short(flow) + self.long(flow))]}


def test_the_graph_is_that_of_the_forward_pass_with_its_times(clock: Clock) -> None:
    model = Branches(clock)
    params = list(model.parameters())
    traced = ForwardTrace(params, with_graph=True)
    run(traced, model, clock, PASSED_OVER + TRACED)
    assert traced.graph(whole(params)) is None
    traced.begins()
    graph = traced.graph(whole(params))
    assert graph is not None
    assert [(transfer.name, transfer.size_bytes) for transfer in graph.transfers] == [
        ("gradient0", 16),
        ("gradient1", 16),
        ("gradient2", 16),
    ]
    assert sum(operation.time_s for operation in graph.computing) == pytest.approx(6.001)
    # The long branch computes while the rest is received.
    assert tao(graph, graph_time(Network(bandwidth=100.0))) == {"gradient1": 0, "gradient0": 1, "gradient2": 2}


class Unordered(nn.Module):
    """Module that registers first the layer that it uses last."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.last, self.first, self.middle = (Layer(clock, seconds, bias=False) for seconds in (4.0, 1.0, 2.0))

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.middle(self.first(flow)))
        return result


def test_in_the_graph_a_layer_has_its_time_wherever_it_is_registered(clock: Clock) -> None:
    model = Unordered(clock)
    graph = whole_trace(model, clock, with_graph=True).graph(whole(list(model.parameters())))
    assert graph is not None
    times = {source: operation.time_s for operation in graph.computing for source in operation.inputs}
    assert [times[f"gradient{place}"] for place in range(3)] == [4.0, 1.0, 2.0]
    assert list(tao(graph, graph_time(Network(bandwidth=100.0)))) == ["gradient1", "gradient2", "gradient0"]


def test_a_block_is_read_with_the_first_of_its_gradients_and_a_layer_reads_all_of_its_blocks(clock: Clock) -> None:
    """There are two small gradients in one block, and a large one, in half precision, in two blocks."""
    large = nn.Linear(2048, 4, bias=False)
    model = nn.Sequential(Layer(clock, 1.0, bias=False), Layer(clock, 2.0, bias=False), nn.Linear(2, 2048), large)
    params = [param for part in (model[0], model[1], large) for param in part.parameters()]
    traced = whole_trace(model, clock, params, with_graph=True)
    blocks = blocks_of([8, 8, 2 * 8192], ["f", "f", None], Cut.uniform(8192))
    assert [len(block.pieces) for block in blocks] == [2, 1, 1]
    graph = traced.graph(blocks)
    assert graph is not None
    assert [transfer.size_bytes for transfer in graph.transfers] == [block.size_bytes for block in blocks]
    names = [transfer.name for transfer in graph.transfers]
    reads = [set(operation.inputs) & set(names) for operation in graph.computing if set(operation.inputs) & set(names)]
    assert reads == [{names[0]}, {names[0]}, set(names[1:])]
    assert traced.forward_of(blocks) == {blocks[0].id: 3.0, blocks[1].id: 0.0, blocks[2].id: 0.0}


def test_where_a_forward_pass_ends_is_seen_when_backward_begins(clock: Clock) -> None:
    model = nn.Sequential(Layer(clock, 0.5), Layer(clock, 0.25))
    traced = ForwardTrace(list(model.parameters()))
    for _ in range(PASSED_OVER + TRACED):
        traced.begins()
        with torch.no_grad():
            model(torch.zeros(1, 2))  # An evaluation.
        out = model(torch.zeros(1, 2)).sum()
        clock.now += 1.0  # The loss.
        out.backward()
        clock.now += 10.0
        model(torch.zeros(1, 2))
    traced.begins()
    assert traced.forward_s() == [0.0, 0.5, 0.0, 1.25]


def test_a_model_whose_parts_are_not_called_is_not_traced_for_ever(clock: Clock) -> None:
    weight = nn.Parameter(torch.ones(2, 2))
    traced = ForwardTrace([weight], with_graph=True)
    for _ in range(PASSED_OVER + TRACED):
        traced.begins()
        (torch.zeros(1, 2) @ weight).sum().backward()
    traced.begins()
    assert traced.done and traced.forward_s() == [0.0] and traced.graph(whole([weight])) is not None


def test_without_one_of_the_parameters_there_is_no_graph(clock: Clock) -> None:
    model = Branches(clock)
    other = Layer(clock, 1.0)
    params = [*model.parameters(), other.weight]
    traced = whole_trace(model, clock, params, with_graph=True)
    assert traced.forward_s() is not None and traced.graph(whole(params)) is None
    assert traced.why_not == "1 of its 4 parameters have no part in the graph of its loss"
