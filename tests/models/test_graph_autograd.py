"""Steps of a forward pass as autograd has seen it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_autograd import graph_of_steps, steps_of_outputs
from prophet_scheduler.models.graph_patterns import ForwardStep


def named(module: nn.Module) -> dict[int, str]:
    return {id(param): name for name, param in module.named_parameters()}


def waits_for(graph: Graph, name: str) -> set[str]:
    """Transfers that must be there before the operations of which `name` is a part of the name."""
    needs: dict[str, set[str]] = {}
    for operation in graph.operations:
        needs[operation.name] = set().union(*(needs[source] for source in operation.inputs), {operation.name})
    transfers = {transfer.name for transfer in graph.transfers}
    (found,) = (needs[operation.name] for operation in graph.computing if name in operation.name)
    return found & transfers


def test_an_operation_waits_for_what_it_is_made_of() -> None:
    left, right, last = nn.Linear(3, 3), nn.Linear(3, 3), nn.LayerNorm(3)
    module = nn.ModuleDict({"left": left, "right": right, "last": last})
    flow = torch.zeros(2, 3)
    out = last(left(flow).relu() + right(flow).tanh())
    steps = steps_of_outputs([out], named(module))
    sizes = {name: param.nbytes for name, param in module.named_parameters()}
    graph = graph_of_steps("branches", steps, sizes, dict.fromkeys(sizes, 0.5))
    assert {transfer.name: transfer.size_bytes for transfer in graph.transfers} == sizes
    assert waits_for(graph, "ReluBackward") == {"left.weight", "left.bias"}
    assert waits_for(graph, "TanhBackward") == {"right.weight", "right.bias"}
    assert waits_for(graph, "LayerNorm") == set(sizes)
    assert sum(operation.time_s for operation in graph.computing) == pytest.approx(3.0)


def test_a_shared_weight_is_one_transfer_and_its_time_counts_once() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    out = (torch.zeros(2, 3) @ weight).relu() @ weight
    steps = steps_of_outputs([out], {id(weight): "weight"})
    assert [step.parameters for step in steps if step.parameters] == [("weight",)] * 2
    graph = graph_of_steps("tied", steps, {"weight": weight.nbytes}, {"weight": 2.0})
    assert [transfer.name for transfer in graph.transfers] == ["weight"]
    assert sum(operation.time_s for operation in graph.computing) == 2.0


def test_several_outputs_and_what_needs_no_gradient() -> None:
    layer, frozen = nn.Linear(3, 3), nn.Linear(3, 3)
    frozen.requires_grad_(False)
    out = layer(frozen(torch.zeros(2, 3)))
    steps = steps_of_outputs([out.sum(), torch.zeros(1), out.mean()], named(layer))
    assert {parameter for step in steps for parameter in step.parameters} == {"weight", "bias"}
    assert sum("Sum" in step.name or "Mean" in step.name for step in steps) == 2
    known: set[str] = set()
    for step in steps:
        assert set(step.inputs) <= known, "inputs come first"
        known.add(step.name)


def test_a_transposed_weight_is_a_part_of_the_product() -> None:
    layer = nn.Linear(3, 3)
    first = nn.Parameter(torch.zeros(2, 3))
    (step,) = steps_of_outputs([layer(first.double().float())], {**named(layer), id(first): "first"})
    assert set(step.parameters) == {"weight", "bias", "first"} and not step.inputs
    assert [step.parameters for step in steps_of_outputs([layer.weight.t()], named(layer))] == [("weight",)]


def test_a_deep_graph_is_no_deeper_than_the_stack() -> None:
    weight = nn.Parameter(torch.ones(()))
    out = weight * 1.0
    for _ in range(5000):
        out = out + 1.0
    assert len(steps_of_outputs([out], {id(weight): "weight"})) == 5001


def test_a_parameter_in_several_blocks_waits_for_all_and_one_block_may_have_several() -> None:
    steps = [ForwardStep("a", (), ("p", "q")), ForwardStep("b", ("a",), ("r",))]
    travels = {"p": ["x"], "q": ["x", "y"], "r": ["y"]}
    graph = graph_of_steps("cut", steps, {"x": 4, "y": 6}, {"q": 2.0, "r": 1.0}, travels)
    assert [(o.name, o.inputs, o.time_s) for o in graph.computing] == [
        ("forward.a", ("x", "y"), 2.0),
        ("forward.b", ("forward.a", "y"), 1.0),
    ]
