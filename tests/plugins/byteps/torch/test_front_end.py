"""The barrier-free optimizer against plain torch.optim, bit for bit, and when it leaves the work to BytePS's own."""

from __future__ import annotations

import atexit
import copy
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from prophet_byteps.torch import front_end
from prophet_scheduler.core.cut import ids_taken
from prophet_scheduler.frontends.torch import updates as torch_updates
from support.torch_network import (
    Network,
    Plain,
    batch,
    gradient_of,
    loss_of,
    make_model,
    pair,
    peek,
    same,
    same_model,
    train,
    twins_of,
    weight_of,
    wrap,
)

SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW

OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "maximize": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "foreach": True}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "fused": True}),
    (SGD, {"lr": torch.tensor(0.1), "momentum": 0.9}),
    (ADAM, {"lr": 1e-2, "weight_decay": 1e-2}),
    (ADAM, {"lr": 1e-2, "amsgrad": True, "foreach": True}),
    (ADAM, {"lr": 1e-2, "fused": True}),
    (ADAMW, {"lr": 1e-2, "betas": (0.8, 0.95)}),
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.5, "centered": True}),
    (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.5, "foreach": True}),
    (torch.optim.Adagrad, {"lr": 1e-2, "lr_decay": 1e-3}),
    (torch.optim.Adadelta, {"weight_decay": 1e-3}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 1e-2}),
    (torch.optim.RAdam, {}),
    (torch.optim.ASGD, {"t0": 2}),
    (torch.optim.Rprop, {}),
    (torch.optim.Rprop, {"foreach": True}),
    (torch.optim.Adafactor, {}),
]


@pytest.mark.parametrize(("make", "settings"), OPTIMIZERS)
def test_every_optimizer_to_the_last_bit(any_order: Network, make: Any, settings: dict[str, Any]) -> None:
    twins = twins_of(any_order, lambda params: make(params, **settings))
    twins.train()
    assert any_order.flying, "the last step must still be on its way"
    assert twins.alike()


@pytest.mark.parametrize("fusion", [False, True])
def test_half_precision_has_the_bits_of_bytepss_and_half_of_the_bytes(any_order: Network, fusion: bool) -> None:
    """Compression.fp16 rounds a gradient, BytePS averages what it rounded, and the average is put back."""
    front_end.install(any_order, fusion)
    twins = twins_of(any_order, lambda params: ADAM(params, lr=1e-2), half=torch.float16)
    twins.train()
    assert not any_order.fell_back
    assert {tensor.dtype for _, tensor, _ in any_order.flying.values()} == {torch.float16}
    assert twins.alike()
    ranges = set(any_order.memory.values())
    assert sum(end - begin for begin, end in ranges) == sum(param.nbytes for param in twins.model.parameters()) // 2


def test_step_returns_while_gradients_fly_and_forward_waits_layer_by_layer(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    assert not network.flying, "probation keeps the barrier"
    train(model, optimizer, first=2, steps=1)
    assert len(network.flying) == 8
    last = peek(model[5])
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append({name for name, _, _ in network.flying.values()}))
    network.newest_first = True  # Gradients appear last layer first, so the first layer's come first.
    inputs, _ = batch(3)
    model(inputs)
    ids = {name: -priority - 1 for name, priority in network.pushed}
    assert {ids[name] for name in seen[0]} == set(range(2, 8)), "all but the first layer's two gradients"
    assert not network.flying
    assert not torch.equal(last, weight_of(model[5]))


def test_priorities_names_and_declarations(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    assert network.declared == [f"prophet.block.0.{number}" for number in range(16)]
    ids = {name: -priority - 1 for name, priority in network.pushed}
    assert [ids[name] for name in network.declared] == [*range(8), *range(8)], "first keys in a row, then second ones"
    sizes = {name: length for name, (begin, end) in network.memory.items() for length in [end - begin]}
    assert [sizes[name] for name in network.declared[:8]] == [param.nbytes for param in model.parameters()]
    assert {name for name, _ in network.pushed[:8]} == set(network.declared[:8])
    assert {name for name, _ in network.pushed[8:16]} == set(network.declared[8:])
    other = make_model()
    train(other, wrap(network, other, torch.optim.SGD(other.parameters(), 0.1)), steps=1)
    taken = ids_taken([param.nbytes for param in model.parameters()])
    others = sorted(-priority - 1 for _, priority in network.pushed[16:])
    assert others == [taken + place for place in range(8)], "ids are the process's, not the optimizer's"
    assert optimizer.state_dict()


def test_one_copy_at_the_same_addresses_in_every_round(network: Network) -> None:
    """The two keys of a block share its memory, so gradients are on their device once more and not twice."""
    _, _, model, optimizer = pair(network)
    addresses: list[set[int]] = []
    for number in range(2, 6):
        train(model, optimizer, number, 1)
        addresses.append({tensor.data_ptr() for _, tensor, _ in network.flying.values()})
    assert addresses[0] == addresses[1] == addresses[2] == addresses[3]
    assert len(addresses[0]) == 8


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("through", ["optimizer", "model"])
def test_clearing_gradients_waits_for_nothing(network: Network, set_to_none: bool, through: str) -> None:
    twins = pair(network)
    for number in range(2, 5):
        for some_model, some_optimizer in twins.sides:
            loss_of(some_model, number).backward()
            some_optimizer.step()
            flying = len(network.flying)
            (some_optimizer if through == "optimizer" else some_model).zero_grad(set_to_none)
            assert len(network.flying) == flying
    assert network.flying
    assert all(
        (p.grad is None) if set_to_none else not gradient_of(p).any()
        for m in twins.model
        for p in m._parameters.values()
        if p is not None
    )
    assert twins.alike()
    assert all(p.grad is None if set_to_none else not gradient_of(p).any() for p in twins.model.parameters())


def test_accumulation(any_order: Network) -> None:
    twins = pair(any_order)
    twins.optimizer.set_backward_passes_per_step(3)
    for number in range(2, 6):
        for some_model, some_optimizer in twins.sides:
            some_optimizer.zero_grad()
            for part in range(3):
                flying = len(any_order.flying)
                loss_of(some_model, number * 3 + part).backward()
                assert part == 2 or len(any_order.flying) <= flying, "a gradient leaves after the last pass only"
            some_optimizer.step()
    assert twins.alike()
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        for number in range(4):
            loss_of(twins.model, number).backward()


def test_a_number_of_passes_that_is_assigned_counts_from_the_next_round_on(network: Network) -> None:
    """As the attribute of this name does in BytePS's."""
    _, _, model, optimizer = pair(network)
    leave = []
    for passes in (1, 2, 1):
        optimizer.backward_passes_per_step = passes
        assert optimizer.backward_passes_per_step == passes
        optimizer.zero_grad()
        before = len(network.pushed)
        loss_of(model, passes).backward()
        leave.append(len(network.pushed) - before)
        optimizer.step()
    assert leave == [8, 8, 0]


def test_first_gradients_are_contiguous_whatever_the_layout_of_parameters(network: Network) -> None:
    """As BytePS makes them, which sends no others. The sum of a norm depends on it."""
    model = nn.Conv2d(3, 4, 5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    _optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1))
    assert not weight_of(model).is_contiguous()
    assert all(gradient_of(p).is_contiguous() and not gradient_of(p).any() for p in model.parameters())


class Branches(nn.Module):
    """Parameters that take part in some iterations only, are tied, or frozen."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.odd = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)
        self.frozen = nn.Linear(6, 3)
        self.frozen.bias.requires_grad_(False)
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.tied(torch.tanh(self.first(inputs)))
        self.calls += 1
        if self.calls % 2:
            hidden = self.odd(hidden)
        result: torch.Tensor = self.frozen(hidden)
        return result


@pytest.mark.parametrize("fusion", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_unused_tied_and_frozen_parameters(any_order: Network, fusion: bool, set_to_none: bool) -> None:
    front_end.install(any_order, fusion)
    truth, model = Branches(), Branches()
    settings: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    reference = torch.optim.SGD([p for p in truth.parameters() if p.requires_grad], **settings)
    optimizer = wrap(any_order, model, torch.optim.SGD(model.parameters(), **settings))
    for some_model, some_optimizer in ((truth, Plain(reference)), (model, optimizer)):
        for number in range(7):
            loss_of(some_model, number).backward()
            some_optimizer.step()
            some_optimizer.zero_grad(set_to_none)
    assert same_model(model, truth)
    assert torch.equal(model.frozen.bias, Branches().frozen.bias)
    assert not any("tied.weight" in name or "frozen.bias" in name for name, _ in any_order.pushed)


def test_freezing_later_sends_zeros_and_updates_nothing(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    optimizer.zero_grad()
    model[0].requires_grad_(False)
    before = weight_of(model[0]).clone()
    pushes = len(network.pushed)
    train(model, optimizer, 2, 3)
    assert len(network.pushed) == pushes + 3 * 8, "every tensor in every round, or other workers wait for ever"
    assert torch.equal(before, weight_of(model[0]))


def test_closure_sees_averages_and_returns_its_loss(network: Network) -> None:
    truth, plain, model, optimizer = twins = pair(network)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 2)
        loss.backward()
        return loss

    expected = loss_of(copy.deepcopy(truth), 2)
    train(truth, plain, 2, 1)
    assert torch.equal(optimizer.step(closure), expected)
    assert not network.flying
    assert twins.alike()


def test_a_closure_finds_averages_of_the_gradients_before_it_and_may_change_them(network: Network) -> None:
    twins = pair(network)
    for some_model, some_optimizer in twins.sides:
        some_optimizer.zero_grad()
        loss_of(some_model, 2).backward()
        some_optimizer.step(lambda model=some_model: nn.utils.clip_grad_norm_(model.parameters(), 0.01))
    assert twins.alike()


def test_step_hooks_run_around_the_step_and_around_the_inner_one_which_has_averages(network: Network) -> None:
    """As around BytePS's own: torch wraps the step() of its class, which calls one that torch wrapped before."""
    truth, _, model, optimizer = twins = pair(network)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append([gradient_of(p).clone() for p in model.parameters()]))
    optimizer.register_step_post_hook(lambda *_: calls.append([p.detach().clone() for p in model.parameters()]))
    twins.train(2, 1)
    assert not network.flying
    updated = [p.detach() for p in truth.parameters()]
    assert same(calls[1:], [[p.grad for p in truth.parameters()], updated, updated])


def test_a_closure_runs_within_the_inner_step_after_the_hooks_before_that(network: Network) -> None:
    """As within BytePS's own: its step() passes the closure on."""
    _, _, model, optimizer = pair(network)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    loss_of(model, 2).backward()
    optimizer.step(lambda: calls.append("closure"))
    assert calls == ["before", "before", "closure", "after", "after"]


@pytest.mark.parametrize("end", ["shutdown", "suspend", "exit"])
def test_the_last_updates_arrive_before_byteps_ends(
    network: Network, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """At the end of the process, too: other workers may need what this one has yet to send."""
    handlers: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", handlers.append)
    network.init()
    twins = pair(network)
    twins.train(2, 1)
    assert network.flying
    for call in reversed(handlers) if end == "exit" else [getattr(network, end)]:
        call()
    assert network.shut_down
    assert not network.flying
    assert torch.equal(peek(twins.model[0]), weight_of(twins.truth[0]))


@pytest.mark.parametrize(
    ("acknowledged", "new", "still_s", "failed", "waits"),
    [
        pytest.param(False, False, 30, False, True, id="link-down"),
        pytest.param(True, True, 30, False, True, id="new-keys"),
        pytest.param(True, False, 2, False, True, id="other-worker-late"),
        pytest.param(True, False, 2, True, False, id="other-worker-late-for-a-program-that-failed"),
        pytest.param(False, False, 30, True, True, id="link-down-for-a-program-that-failed"),
        pytest.param(True, False, 30, False, False, id="other-worker-gone"),
        pytest.param(False, False, 10**6, False, False, id="server-gone"),
    ],
)
def test_the_end_waits_for_what_others_need_and_not_for_what_they_owe(
    network: Network,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    acknowledged: bool,
    new: bool,
    still_s: int,
    failed: bool,
    waits: bool,
) -> None:
    if failed:
        monkeypatch.setattr(sys, "last_value", KeyboardInterrupt(), raising=False)
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    network.acknowledged = acknowledged
    if new:
        optimizer._prophet._keyed._engine._opening.update(network.flying)
    clock = itertools.count(step=1)
    monkeypatch.setattr(torch_updates, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    deliver = network.wait_activity
    down_s: Iterator[int] = iter(range(still_s))

    def wait(limit_s: float) -> None:
        if next(down_s, None) is None:
            deliver(limit_s)

    monkeypatch.setattr(network, "wait_activity", wait)
    network.shutdown()
    assert network.shut_down
    assert bool(network.flying) != waits
    assert not any(slot.life.pending for slot in optimizer._prophet._order), "a later use waits for nothing"
    said = ["Prophet: updates were still outstanding when the job ended, and nothing moved any more"]
    assert caplog.messages == said * (not waits)
    network.shut_down = network.acknowledged = False  # for the fixture's own end
    down_s = iter(())


def test_a_fused_tensor_leaves_when_its_last_member_is_ready(network: Network) -> None:
    front_end.install(network, fusion=True)
    twins = pair(network)
    del network.pushed[:]
    twins.train(2, 4)
    assert [priority for _, priority in network.pushed] == [-1] * 4, "all of this model fits one tensor"
    assert twins.alike()


def test_a_module_that_has_its_parameters_in_another_order_or_twice_updates_each_once(network: Network) -> None:
    """As pruning leaves a layer, whose weight comes after its bias then, or tying two names of one parameter."""
    twins = pair(network)
    for network_of_layers in (twins.truth, twins.model):
        layer = network_of_layers[0]  # the first that is used: what follows it is updated with it
        assert isinstance(layer, nn.Linear)
        weight = layer._parameters.pop("weight")
        layer.register_parameter("weight", weight)
        layer.register_parameter("again", weight)
    twins.train(first=2)
    assert list(dict(twins.model[0].named_parameters(remove_duplicate=False))) == ["bias", "weight", "again"]
    assert twins.alike()
