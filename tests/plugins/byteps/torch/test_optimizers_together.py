"""Several optimizers in one process, names that are missing, and rounds that begin anew after a suspend."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch import nn

from support.torch_network import (
    Network,
    Plain,
    batch,
    install,
    loss_of,
    make_model,
    pair,
    same_model,
    train,
    twins_of,
    wrap,
)

SGD = torch.optim.SGD


def test_optimizers_with_equal_names_have_keys_of_their_own(any_order: Network) -> None:
    """Twin critics: two models alike, and rounds that know nothing of each other."""
    pairs = [twins_of(any_order, lambda params, k=k: SGD(params, 0.1 * (1 + k))) for k in range(2)]  # type: ignore[misc]
    for number in range(6):
        for k, twins in enumerate(pairs):
            twins.train(number + 10 * k, 1)
    assert len({name for name, _, _ in any_order.flying.values()}) == 16, "both are still on their way"
    assert len({priority for _, priority in any_order.pushed}) == 16
    assert all(twins.alike() for twins in pairs)


def test_names_of_parameters_make_no_difference(network: Network) -> None:
    weights = [torch.randn(6, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)]
    named = list(zip(("w", "prophet.block.0.0"), weights, strict=True))
    optimizer = network.DistributedOptimizer(SGD(weights, 0.1), named_parameters=named)
    (batch(0)[0] @ weights[0] @ weights[1]).sum().backward()
    optimizer.step()
    assert len(set(network.declared)) == len(network.declared) == 4


def test_two_optimizers_of_one_model_step_in_the_order_of_the_program(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """Each averages every gradient for itself, and the second one's step finds the first one's in place."""
    truth, model = make_model(), make_model()
    plains = [Plain(SGD(truth.parameters(), 0.1, momentum=0.9)), Plain(torch.optim.Adam(truth.parameters(), 1e-2))]
    optimizers = [
        wrap(network, model, SGD(model.parameters(), 0.1, momentum=0.9)),
        wrap(network, model, torch.optim.Adam(model.parameters(), 1e-2)),
    ]
    for number in range(6):
        loss_of(truth, number).backward()
        plains[0].synchronize()
        for plain in plains:
            plain.optimizer.step()
        truth.zero_grad()
        loss_of(model, number).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    assert network.flying
    assert same_model(model, truth)
    assert not caplog.records


@pytest.mark.parametrize("closure", [None, lambda: None])
def test_a_hook_around_one_ones_step_finds_the_other_ones_updates(network: Network, closure: Any) -> None:
    """Also the hooks around the inner step, which an optimizer that waits for its averages runs at once."""
    twins = [pair(network) for _ in range(2)]
    first, second = (each.model[0].weight for each in twins)
    seen: list[torch.Tensor] = []
    twins[1].optimizer.register_step_pre_hook(lambda *_: None if len(seen) else seen.append(second))
    twins[1].optimizer.register_step_post_hook(lambda *_: seen.append(first.detach().clone()))
    for each in twins:
        for model, optimizer in each.sides:
            loss_of(model, 2).backward()
            optimizer.step() if each is twins[0] else optimizer.step(closure)
    assert torch.equal(seen[1], twins[0].truth[0].weight)


def test_an_optimizer_outside_of_byteps_finds_the_updates(network: Network) -> None:
    truth, plain, model, optimizer = twins = pair(network)
    local = [SGD(m.parameters(), 0.01) for m in (truth, model)]
    for number in range(2, 5):
        for k, (some_model, some_optimizer) in enumerate(((truth, plain), (model, optimizer))):
            train(some_model, some_optimizer, number, 1)
            for p in some_model._parameters.values():
                assert p is None
            local[k].zero_grad()
            for group in local[k].param_groups:
                for p in group["params"]:
                    p.grad = torch.ones_like(p)
            local[k].step()
    assert twins.alike()


def test_a_parameter_twice_in_a_group_keeps_bytepss_optimizer(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Linear(6, 3)
    with pytest.warns(UserWarning, match="duplicate"):
        bare = SGD([model.weight, model.weight, model.bias], 0.1)
    assert wrap(network, model, bare) is bare
    assert "a parameter is in it twice" in caplog.text


@pytest.mark.parametrize("named", [None, [], "some"])
def test_gradients_without_a_name_are_an_error_as_in_byteps(network: Network, named: Any) -> None:
    model = make_model()
    if named == "some":
        named = list(model.named_parameters())[:3]
    optimizer = network.DistributedOptimizer(SGD(model.parameters(), 0.1), named_parameters=named)
    with pytest.raises(ValueError, match="not among the named_parameters"):
        train(model, optimizer, steps=1)
    assert not network.pushed


def test_rounds_begin_anew_after_a_suspend(network: Network) -> None:
    """A worker that takes another's place begins with the first key of each gradient: so must the others."""
    twins = pair(network)
    twins.train(2, 2)
    network.suspend()
    assert not network.flying
    assert network.resets == 1
    network.resume(2, 1, 0)
    before = len(network.pushed)
    twins.train(4, 2)
    names = [name for name, _ in network.pushed[before:]]
    assert len(network.declared) == 16
    assert set(names[:8]) == set(network.declared[:8])
    assert set(names[8:]) == set(network.declared[8:])
    assert twins.alike()


def test_workers_are_told_what_will_be_sent_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """And once more of a model that was cast meanwhile."""
    network = Network()
    said: list[tuple[str, ...]] = []
    agreement = types.SimpleNamespace(
        propose=lambda topic, text: said.append((topic, text)),
        settle=lambda topic: said.append((topic,)),
        active=lambda: None,
    )
    install(monkeypatch, network, agreement=agreement)
    model, other, cast = make_model(), make_model(), make_model()
    optimizer = wrap(network, model, SGD(model.parameters(), 0.1))
    wrap(network, other, torch.optim.LBFGS(other.parameters()))
    cast_optimizer = wrap(network, cast, SGD(cast.parameters(), 0.1))
    assert [topic for topic, _ in said] == [f"optimizer {number}" for number in range(3)]
    assert "8 gradients of 4316 bytes" in said[0][1]
    assert "LBFGS" in said[1][1]
    assert not network.pushed
    train(model, optimizer, steps=2)
    assert said[3:] == [("optimizer 0",)]
    cast.double()
    cast_optimizer.zero_grad()
    cast(batch(0)[0].double()).sum().backward()
    cast_optimizer.step()
    assert [words[0] for words in said[4:]] == ["optimizer 2"] * 2
    assert "of 4316 bytes" in said[2][1] and "of 8632 bytes" in said[4][1]
    assert {param.dtype for param in cast.parameters()} == {torch.float64}


def test_names_are_declared_when_a_model_is_wrapped_whichever_trains_first(network: Network) -> None:
    """Workers may train their models in different orders, or in threads, and number their tensors alike."""
    models = [make_model(), make_model()]
    optimizers = [wrap(network, model, SGD(model.parameters(), 0.1)) for model in models]
    declared = list(network.declared)
    for model, optimizer in reversed(list(zip(models, optimizers, strict=True))):
        train(model, optimizer, steps=1)
    assert network.declared == declared
    assert {name for name, _ in network.pushed} <= set(declared)
