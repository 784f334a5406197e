"""What few programs do with BytePS's optimizer, against plain torch.optim, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from support.torch_network import (
    Network,
    average,
    batch,
    gradient_of,
    loss_of,
    make_model,
    pair,
    plain_sgd,
    same,
    train,
    twins_of,
    wrap,
)


def test_a_parameter_that_left_the_groups_gets_its_average(any_order: Network) -> None:
    _, _, model, optimizer = pair(any_order)
    left = optimizer.param_groups[0]["params"].pop(0)
    for number in range(2, 5):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        local = gradient_of(left).clone()
        optimizer.step()
        assert torch.equal(gradient_of(left), average(local))


def test_another_optimizer_trains_what_left_the_groups(any_order: Network) -> None:
    results = []
    for wrapped in (False, True):
        model = make_model()
        last = list(model[5].parameters())
        groups: list[dict[str, Any]] = [{"params": model[:4].parameters()}, {"params": last}]
        bare = torch.optim.SGD(groups, 0.1, momentum=0.9)
        optimizer = wrap(any_order, model, bare) if wrapped else bare
        other = plain_sgd(last)
        for number in range(8):
            if number == 4:
                del optimizer.param_groups[1]
            optimizer.zero_grad()
            other.zero_grad()
            loss_of(model, number).backward()
            if not wrapped:
                for param in model.parameters():
                    gradient_of(param).copy_(average(gradient_of(param)))
            optimizer.step()
            if number >= 4:
                other.step()
        results.append({name: value.clone() for name, value in model.state_dict().items()})
    assert same(*results)


class Late(nn.Module):
    """`late` is read within backward alone; weight decay and momentum change it in each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.late = nn.ParameterList([nn.Parameter(torch.ones(6))])
        self.kept = list(self.late)
        self.hooked = False

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = torch.tanh(self.first(inputs))
        if self.hooked and hidden.requires_grad:
            hidden.register_hook(lambda grad: grad * self.kept[0].detach())
        return self.last(hidden)


def step(model: Any, optimizer: Any, number: int) -> None:
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, number).backward()
    optimizer.step()


def hook_of_backward(model: Any, optimizer: Any, number: int) -> Any:
    model.hooked = True
    step(model, optimizer, number)


def hook_of_grad(model: Any, optimizer: Any, number: int) -> Any:
    step(model, optimizer, number)
    inputs = batch(number)[0].requires_grad_(True)
    hidden = torch.tanh(inputs)
    hidden.register_hook(lambda grad: grad * model.kept[0].detach())
    return torch.autograd.grad(hidden.sum(), inputs)


def post_accumulate_hook(model: Any, optimizer: Any, number: int) -> Any:
    seen: list[torch.Tensor] = []
    weight = model.last.weight
    handle = weight.register_post_accumulate_grad_hook(lambda _: seen.append(model.kept[0].detach().clone()))
    step(model, optimizer, number)
    handle.remove()
    return seen


def recomputed(model: Any, optimizer: Any, number: int) -> Any:
    kept = model.kept[0]
    inputs = batch(number)[0].requires_grad_(True)
    side: Any = checkpoint(lambda values: (values * kept.detach()).tanh().sum(), inputs, use_reentrant=False)
    step(model, optimizer, number)
    side.backward()
    return inputs.grad


@pytest.fixture
def no_wrapper_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo that an earlier test of this process has had backward passes watched, for good."""
    from prophet_scheduler.frontends.torch import awaited

    run: Any = vars(torch.autograd)["_engine_run_backward"]
    while hasattr(run, "__wrapped__"):
        run = run.__wrapped__
    monkeypatch.setattr(torch.autograd, "_engine_run_backward", run)
    monkeypatch.setattr(awaited, "_installed", False)


@pytest.mark.usefixtures("no_wrapper_before")
@pytest.mark.parametrize("program", [hook_of_backward, hook_of_grad, post_accumulate_hook, recomputed])
def test_reads_within_a_backward_pass_are_up_to_date(any_order: Network, program: Callable[..., Any]) -> None:
    def make(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, 0.1, momentum=0.9, weight_decay=1e-2)

    twins = twins_of(any_order, make, Late)
    seen = [[program(*side, number) for number in range(8)] for side in twins.sides]
    assert same(*seen)
    assert twins.alike()


def test_parameters_that_are_tied_by_data_after_they_were_wrapped(any_order: Network) -> None:
    def layers() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))

    twins = twins_of(any_order, plain_sgd, layers)
    twins.train(0, 4)
    for model in (twins.truth, twins.model):
        model[2].weight.data = model[0].weight.data
    twins.train(4, 6)
    assert twins.alike()


def test_a_distance_function_of_the_program_finds_the_update(any_order: Network) -> None:
    twins = twins_of(any_order, plain_sgd, Late)
    seen: list[list[torch.Tensor]] = [[], []]
    for (model, optimizer), own in zip(twins.sides, seen, strict=True):
        weight = model.kept[0]

        def distance(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor = weight) -> torch.Tensor:
            distances: torch.Tensor = torch.linalg.vector_norm((a - b) * weight, dim=1)
            return distances

        for number in range(6):
            train(model, optimizer, number, 1)
            inputs = batch(number)[0]
            others = inputs.flip(0), inputs.flip(1)
            with torch.no_grad():
                own.append(nn.functional.triplet_margin_with_distance_loss(inputs, *others, distance_function=distance))
    assert same(*seen)
    assert twins.alike()


def test_an_error_in_an_update_is_itself(any_order: Network) -> None:
    _, _, model, optimizer = pair(any_order)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    optimizer.param_groups[0]["lr"] = "0.1"
    with pytest.raises(TypeError):
        optimizer.step()
        model(batch(1)[0])
    any_order.flying.clear()


@pytest.fixture
def compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def of_step(model: Any, optimizer: Any) -> None:
    compiled: Any = torch.compile(optimizer.step, backend="eager")
    for number in range(2, 4):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        compiled()


@pytest.mark.usefixtures("compiler")
def test_a_step_may_be_compiled(network: Network) -> None:
    twins = pair(network)
    for number in range(2, 4):
        twins.plain.zero_grad()
        loss_of(twins.truth, number).backward()
        twins.plain.step()
    of_step(twins.model, twins.optimizer)
    assert twins.alike()
