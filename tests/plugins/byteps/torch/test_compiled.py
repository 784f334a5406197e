"""Modules compiled by torch.compile: what they wait for, and when their code could use more than their own tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from prophet_scheduler.frontends import notices
from prophet_scheduler.frontends.torch import references
from support.torch_network import (
    Network,
    batch,
    pair,
    peek,
    same,
    train,
    weight_of,
)

Compile = Callable[[nn.Sequential, int], None]


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Compiler that has compiled nothing yet, in a process that has had no warnings."""
    monkeypatch.setattr(notices, "_warned", set())
    caplog.set_level(logging.WARNING, "prophet_scheduler")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Reaching(nn.Module):
    """Layer of a program's own, which may use tensors that are not part of it."""

    def __init__(self, inner: nn.Module, others: Sequence[torch.Tensor] = (), breaks: bool = False) -> None:
        super().__init__()
        self.inner, self.others, self.breaks = inner, others, breaks

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.inner(inputs)
        if self.breaks:
            torch._dynamo.graph_break()
        return outputs + sum(other.sum() for other in self.others)


def with_own_layers(*models: nn.Sequential) -> None:
    """Put layers into modules of our own, since modules of torch are not compiled by themselves."""
    for model in models:
        for place in (0, 2):
            model[place] = Reaching(model[place])


def in_place(model: nn.Sequential, place: int) -> None:
    model[place].compile(backend="eager")


def wrapped(model: nn.Sequential, place: int) -> None:
    model[place] = torch.compile(model[place], backend="eager")  # type: ignore[assignment]


def own(module: Any) -> nn.Module:
    """Return the module that was compiled."""
    inner: nn.Module = getattr(module, "_orig_mod", module)
    return inner


@pytest.mark.parametrize("compile_block", [in_place, wrapped])
def test_a_compiled_block_waits_for_its_own_updates(network: Network, compile_block: Compile) -> None:
    truth, _, model, _ = twins = pair(network)
    with_own_layers(truth, model)
    for place in (0, 2):
        compile_block(model, place)
    twins.train(2, 5)
    network.newest_first = True
    flying = len(network.flying)
    assert flying == 8, "step() waited"
    inner: nn.Module = own(model[2]).inner  # type: ignore[assignment]
    hidden = model[1](model[0](batch(9)[0]))
    assert len(network.flying) == 6, "its own two, and nothing else"
    before = peek(inner)
    model[2](hidden)
    assert not torch.equal(peek(inner), before)
    assert len(network.flying) == 4
    assert counters["stats"]["unique_graphs"] > 0
    assert same(list(model.parameters()), list(truth.parameters()))


def test_a_model_compiled_whole_waits_when_it_is_called_and_says_so(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    truth, plain, model, optimizer = twins = pair(network)
    compiled: Any = torch.compile(model, backend="eager")
    train(truth, plain, 2, 4)
    train(compiled, optimizer, 2, 4)
    assert network.flying, "step() waited"
    assert same(compiled(torch.ones(2, 6)), truth(torch.ones(2, 6)))
    assert not network.flying
    assert twins.alike()
    (line,) = caplog.messages
    assert "compiled 100% of the trained parameters as one piece" in line


@pytest.mark.parametrize(
    ("breaks", "why"),
    [(False, "uses parameters of others"), (True, "several graphs of a module, with Python between them")],
)
def test_step_waits_where_compiled_code_could_use_more_than_its_own(
    network: Network, caplog: pytest.LogCaptureFixture, breaks: bool, why: str
) -> None:
    twins = pair(network)
    for some_model in (twins.truth, twins.model):
        others = [] if breaks else [weight_of(some_model[5])]
        some_model[2] = Reaching(some_model[2], others, breaks)
    twins.model[2].compile(backend="eager")
    twins.train(2, 5)
    assert not network.flying
    assert twins.alike()
    assert [line for line in caplog.messages if "step() waits for all updates from now on: " in line and why in line]


def test_compiled_code_finds_the_stack_of_modes_as_it_would_be_without_prophet(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    with_own_layers(model)
    heights = []

    def look(graph: Any, inputs: Any) -> Any:
        def run(*arguments: Any) -> Any:
            heights.append(torch._C._len_torch_function_stack())
            return graph.forward(*arguments)

        return run

    model[2].compile(backend=look)
    train(model, optimizer, 2, 4)
    assert network.flying and references.watching_here()
    network.newest_first = True
    model[2](model[1](model[0](batch(9)[0])))
    assert set(heights) == {0}
    assert references.watching_here(), "others are still pending"
