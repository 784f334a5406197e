"""Graphs of small PyTorch models: a chain, branches, a residual, shared and frozen weights, and the three patterns."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from prophet.core.errors import UserError
from prophet.core.graph import Graph
from prophet.core.network import Network
from prophet.models.graph_patterns import Pattern
from prophet.models.graph_torch import graph_of_module
from prophet.policies.algorithms.tictac import Worker, graph_time, received, tao, tio


class Inception(nn.Module):
    """A stem, two branches of different depth, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.short = nn.Conv2d(4, 2, 1)
        self.squeeze = nn.Conv2d(4, 2, 1)
        self.wide = nn.Conv2d(2, 6, 3, padding=1)
        self.classify = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.cat([self.short(x), self.wide(torch.relu(self.squeeze(x)))], dim=1)
        result: torch.Tensor = self.classify(x.mean(dim=(2, 3)))
        return result


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x + self.first(x) * self.scale)
        return result


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.again = nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 16, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.again(self.again(self.embed(tokens))))
        return result


def inputs_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {operation.name: operation.inputs for operation in graph.operations}


IMAGE = (torch.zeros(2, 3, 8, 8),)


def test_a_parameter_is_received_before_the_operation_that_reads_it() -> None:
    graph = graph_of_module(Inception(), IMAGE, flops_per_s=1.0)
    inputs = inputs_of(graph)
    assert inputs["forward.stem"] == ("stem.weight", "stem.bias")
    assert inputs["forward.relu"] == ("forward.stem",)
    assert inputs["forward.short"] == ("forward.relu", "short.weight", "short.bias")
    assert inputs["forward.squeeze"] == ("forward.relu", "squeeze.weight", "squeeze.bias")
    assert inputs["forward.wide"] == ("forward.relu_1", "wide.weight", "wide.bias")
    assert inputs["forward.cat"] == ("forward.short", "forward.wide")
    assert graph.name == "Inception"
    assert [(o.name, o.size_bytes) for o in graph.transfers] == [
        (name, parameter.nbytes) for name, parameter in Inception().named_parameters()
    ]
    assert received(graph) == graph.transfers


def test_work_is_two_operations_a_multiplication_or_one_a_number_of_the_result() -> None:
    graph = graph_of_module(Inception(), IMAGE, flops_per_s=2.0)
    pixels = 2 * 8 * 8  # of a batch
    assert graph["forward.stem"].time_s == 2 * pixels * 4 * 3 * 9 / 2.0
    assert graph["forward.relu"].time_s == pixels * 4 / 2.0
    assert graph["forward.classify"].time_s == 2 * 2 * 8 * 10 / 2.0


def test_a_plain_parameter_feeds_the_operation_that_reads_it_and_a_shortcut_is_an_edge() -> None:
    inputs = inputs_of(graph_of_module(Residual(), (torch.zeros(5, 4),), flops_per_s=1.0))
    assert inputs["forward.mul"] == ("forward.first", "scale")
    assert inputs["forward.add"] == ("forward.mul",), "the other operand is the input of the model"
    assert inputs["forward.norm"] == ("forward.add", "norm.weight", "norm.bias")
    assert not [name for name in inputs if "running" in name or "batches" in name]


def test_a_weight_used_in_several_places_is_one_transfer() -> None:
    tokens = (torch.zeros(2, 3, dtype=torch.long),)
    graph = graph_of_module(Tied(), tokens, flops_per_s=1.0, pattern=Pattern.WORKER)
    inputs = inputs_of(graph)
    assert [o.name for o in graph.transfers if not o.inputs] == ["embed.weight", "again.weight"]
    assert inputs["forward.again_1"] == ("forward.again", "again.weight")
    assert inputs["forward.out"] == ("forward.again_1", "embed.weight")
    assert inputs["gradient.again.weight"] == ("backward.again", "backward.again_1")
    assert inputs["gradient.embed.weight"] == ("backward.embed", "backward.out")


def test_a_frozen_parameter_does_not_travel() -> None:
    model = Inception()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in ("stem.weight", "stem.bias", "short.bias"))
    graph = graph_of_module(model, IMAGE, flops_per_s=1.0, pattern=Pattern.WORKER)
    names = inputs_of(graph)
    assert "stem.weight" not in names
    assert "short.bias" not in names
    assert "backward.stem" not in names, "nothing before the first trained parameter needs a gradient"
    assert "backward.short" in names


def test_backward_mirrors_forward_and_gradients_are_sent() -> None:
    graph = graph_of_module(Inception(), IMAGE, flops_per_s=1.0, pattern=Pattern.WORKER)
    inputs = inputs_of(graph)
    assert inputs["backward.classify"] == ("forward.classify",), "the loss"
    assert inputs["backward.relu"] == ("backward.short", "backward.squeeze", "forward.relu")
    assert inputs["gradient.wide.weight"] == ("backward.wide",)
    sent = {o.name for o in graph.transfers} - {o.name for o in received(graph)}
    assert sent == {f"gradient.{name}" for name, _ in Inception().named_parameters()}
    # The gradients of weight and input are a product each; the input of the model needs none.
    assert graph["backward.wide"].time_s == 2 * graph["forward.wide"].time_s
    assert graph["backward.stem"].time_s == graph["forward.stem"].time_s
    assert graph["backward.relu"].time_s == graph["forward.relu"].time_s


def test_an_exchange_goes_between_backward_and_forward() -> None:
    graph = graph_of_module(Inception(), IMAGE, flops_per_s=1.0, pattern=Pattern.EXCHANGE)
    inputs = inputs_of(graph)
    assert inputs["backward.classify"] == ()
    assert inputs["wide.weight"] == ("backward.wide",)
    assert inputs["forward.stem"] == ("backward.stem", "stem.weight", "stem.bias")
    assert inputs["forward.classify"] == ("forward.mean", "classify.weight", "classify.bias")
    assert len(graph.transfers) == 10


def test_the_branch_with_more_behind_it_is_received_first() -> None:
    graph = graph_of_module(Inception(), IMAGE, flops_per_s=1e6)
    network = Network(1e5)
    order = [name.split(".")[0] for name in tao(graph, graph_time(network)) if name.endswith("weight")]
    assert order[0] == "stem"
    assert order[-1] == "classify"
    worker = Worker(graph, graph_time(network))
    registered = {o.name: i for i, o in enumerate(graph.transfers)}
    assert worker.makespan_s(tao(graph, graph_time(network))) <= worker.makespan_s(registered)
    assert set(tio(graph)) == set(registered)


def test_measured_times_take_the_place_of_estimates() -> None:
    names = [o.name for o in graph_of_module(Residual(), (torch.zeros(5, 4),), flops_per_s=1.0).computing]
    times = {name: 0.5 + place for place, name in enumerate(names)}
    graph = graph_of_module(Residual(), (torch.zeros(5, 4),), times_s=times)
    assert {o.name: o.time_s for o in graph.computing} == times
    mixed = graph_of_module(Residual(), (torch.zeros(5, 4),), times_s={"forward.mul": 9.0}, flops_per_s=20.0)
    assert mixed["forward.mul"].time_s == 9.0
    assert mixed["forward.add"].time_s == 1.0


def test_the_model_is_left_as_it_was() -> None:
    model = Residual()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph_of_module(model, (torch.ones(5, 4),), flops_per_s=1.0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


def test_no_weight_is_touched_so_a_model_may_be_larger_than_memory() -> None:
    with torch.device("meta"):
        model = nn.Linear(1 << 20, 1 << 20)
        value = torch.zeros(1, 1 << 20)
    graph = graph_of_module(model, (value,), flops_per_s=1.0)
    assert graph["weight"].size_bytes == 4 << 40
    assert graph.computing[0].time_s == 2.0 * (1 << 40)


class Masked(nn.Module):
    shift: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mask = torch.ones(4)
        self.register_buffer("shift", torch.ones(4))
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x + self.shift) * self.mask * torch.arange(4)
        return result


def test_tensors_that_are_no_parameters_do_not_travel() -> None:
    graph = graph_of_module(Masked(), (torch.zeros(5, 4),), flops_per_s=1.0)
    assert [o.name for o in graph.transfers] == ["layer.weight"]
    assert inputs_of(graph)["forward.mul"] == ("forward.layer",)
    assert graph["forward.mul"].time_s == 20.0


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_done_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    value = (torch.zeros(5, 4),)
    with pytest.raises(UserError, match=r"model 'Branching': torch\.fx cannot trace it \(TraceError: "):
        graph_of_module(Branching(), value, flops_per_s=1.0)
    with pytest.raises(UserError, match="model 'Inception': does not run on these inputs") as caught:
        graph_of_module(Inception(), value, flops_per_s=1.0)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=r"no time for operation 'forward\.first'; give it in 'times_s', or"):
        graph_of_module(Residual(), value)
    with pytest.raises(UserError, match=r"'times_s' names 'forward\.none', which computes nothing"):
        graph_of_module(Residual(), value, flops_per_s=1.0, times_s={"forward.none": 1.0})
    monkeypatch.setitem(sys.modules, "torch._subclasses.fake_tensor", None)
    with pytest.raises(UserError, match="needs torch; install it"):
        graph_of_module(Residual(), value, flops_per_s=1.0)
