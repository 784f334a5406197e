"""The barrier-free optimizer against plain torch.optim, bit for bit, on a network that the test drives.

`Network` stands in for byteps.torch: what is pushed stays in flight until the test delivers it, or until
the front end waits, which delivers one tensor. No process, no clock.
"""

from __future__ import annotations

import copy
import gc
import io
import logging
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from prophet.plugins.byteps import hook, torch_guards, torch_updates
from prophet.plugins.byteps import torch as front_end
from prophet.plugins.byteps.torch_buckets import FUSE_BELOW_BYTES, FUSE_SPAN_BYTES, FUSE_TOTAL_BYTES, fuse
from torch import nn


def average(gradient: torch.Tensor) -> torch.Tensor:
    """What two workers' average comes to, where the other one's gradient depends on ours in a known way."""
    return gradient.mul(0.75).add_(1e-3)


class NoCompression:
    pass


class Network:
    """byteps.torch as the front end sees it."""

    __name__ = "byteps.torch"
    Compression = types.SimpleNamespace(none=NoCompression, fp16=object())

    def __init__(self, newest_first: bool = False) -> None:
        self.newest_first = newest_first
        self.workers = 2
        self.identity = ""
        self.declared: list[str] = []
        self.pushed: list[tuple[str, int]] = []
        self.fell_back: list[torch.optim.Optimizer] = []
        self.shut_down = False
        self.flying: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        self.done: set[int] = set()

        def stock(optimizer: Any, named_parameters: Any = None, compression: Any = None, passes: int = 1) -> Any:
            names = [name for name, _ in named_parameters or []]
            if len(set(names)) != len(names):
                raise ValueError("Parameter names in named_parameters must be unique.")
            self.fell_back.append(optimizer)
            return optimizer

        stock.__module__ = self.__name__
        self.DistributedOptimizer: Callable[..., Any] = stock
        self.shutdown: Callable[[], None] = self._shutdown
        self.suspend: Callable[[], None] = self._shutdown

    def _shutdown(self) -> None:
        self.shut_down = True

    def size(self) -> int:
        return self.workers

    def declare(self, name: str) -> None:
        self.declared.append(name)

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        assert average
        assert tensor.is_contiguous()
        gradient = name.removesuffix(".odd")
        assert gradient not in {flying.removesuffix(".odd") for flying, _, _ in self.flying.values()}
        earlier = [old for old, _ in self.pushed if old.removesuffix(".odd") == gradient]
        assert not earlier or earlier[-1] != name, "two rounds in turn must use different keys"
        self.pushed.append((name, priority))
        handle = len(self.pushed)
        self.flying[handle] = (name, tensor, tensor.clone())
        return handle

    def poll(self, handle: int) -> bool:
        return handle in self.done

    def synchronize(self, handle: int) -> None:
        self.done.remove(handle)

    def deliver(self, name: str = "") -> None:
        """Delivers one tensor: the newest or the oldest in flight, or the one with this name."""
        assert self.flying, "the front end waits, but nothing is in flight"
        handles = [h for h, (flying, _, _) in self.flying.items() if not name or flying.removesuffix(".odd") == name]
        handle = handles[-1] if self.newest_first else handles[0]
        _, tensor, sent = self.flying.pop(handle)
        assert torch.equal(tensor, sent), "a tensor was written while in flight"
        tensor.copy_(average(tensor))
        self.done.add(handle)

    # The native hook's part.

    def set_identity(self, by: str) -> None:
        self.identity = by

    def wait_activity(self, limit_s: float) -> None:
        self.deliver()


@pytest.fixture(params=[False, True], ids=["oldest-first", "newest-first"])
def any_order(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    yield from _network(Network(request.param), monkeypatch)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    yield from _network(Network(), monkeypatch)


def _network(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    monkeypatch.setattr(hook, "_loaded", network)
    monkeypatch.setattr(torch_updates, "_warned", set())
    monkeypatch.delenv("BYTEPS_ENABLE_ASYNC", raising=False)
    monkeypatch.setattr(front_end.atexit, "register", lambda function: None)
    front_end.install(network, fusion=False)
    yield network
    network.shutdown()


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 37), nn.Tanh(), nn.Linear(37, 19), nn.BatchNorm1d(19), nn.ReLU(), nn.Linear(19, 3)
    )


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    inputs, labels = batch(number)
    return nn.functional.cross_entropy(model(inputs), labels)


class Plain:
    """The truth: the same optimizer in one process, on gradients averaged in place."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def synchronize(self) -> None:
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.copy_(average(p.grad))

    def step(self) -> None:
        self.synchronize()
        self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def train(model: nn.Module, optimizer: Any, first: int = 0, steps: int = 6, scheduler: Any = None) -> None:
    for number in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def wrap(network: Network, model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Any:
    return network.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **more)


def pair(network: Network, lr: float = 0.1, **more: Any) -> tuple[nn.Module, Plain, nn.Module, Any]:
    """A model trained by plain SGD, and its twin under the front end, past its probation."""
    truth, model = make_model(), make_model()
    plain = Plain(torch.optim.SGD(truth.parameters(), lr, momentum=0.9))
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), lr, momentum=0.9), **more)
    train(truth, plain, steps=2)
    train(model, optimizer, steps=2)
    return truth, plain, model, optimizer


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def same_model(a: nn.Module, b: nn.Module) -> bool:
    return same(dict(a.state_dict()), dict(b.state_dict()))


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
    (torch.optim.Adagrad, {"lr": 1e-2, "initial_accumulator_value": 0.1, "lr_decay": 1e-3}),
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
    truth, model = make_model(), make_model()
    plain = Plain(make(truth.parameters(), **settings))
    optimizer = wrap(any_order, model, make(model.parameters(), **settings))
    train(truth, plain)
    train(model, optimizer)
    assert any_order.flying, "the last step must still be on its way"
    assert same(optimizer.state_dict(), plain.optimizer.state_dict())
    assert same_model(model, truth)


@pytest.mark.parametrize("fusion", [False, True])
def test_groups_and_schedulers(any_order: Network, fusion: bool) -> None:
    """The scheduler runs right after step(): pending updates must not see its new rates."""
    front_end.install(any_order, fusion)

    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2:].parameters(), "weight_decay": 0.1}],
            0.01,
        )

    def scheduler(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.02], total_steps=8)

    truth, model = make_model(), make_model()
    plain = Plain(make(truth))
    optimizer = wrap(any_order, model, make(model))
    assert isinstance(optimizer, torch.optim.AdamW)
    train(truth, plain, scheduler=scheduler(plain.optimizer))
    train(model, optimizer, scheduler=scheduler(optimizer))
    assert same(optimizer.state_dict(), plain.optimizer.state_dict())
    assert same_model(model, truth)


def test_scheduler_of_the_optimizer_before_wrapping(network: Network) -> None:
    truth, model = make_model(), make_model()
    bare = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(bare, 1, 0.5)
    optimizer = wrap(network, model, bare)
    plain = Plain(torch.optim.SGD(truth.parameters(), 0.1))
    train(model, optimizer, scheduler=schedule)
    train(truth, plain, scheduler=torch.optim.lr_scheduler.StepLR(plain.optimizer, 1, 0.5))
    assert not network.fell_back
    assert same_model(model, truth)


def test_step_returns_while_gradients_fly_and_forward_waits_layer_by_layer(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    assert not network.flying, "probation keeps the barrier"
    train(model, optimizer, first=2, steps=1)
    assert len(network.flying) == 8
    last = model[5]._parameters["weight"].clone()
    seen = []
    model[1].register_forward_hook(lambda *_: seen.append({name for name, _, _ in network.flying.values()}))
    network.newest_first = True  # Gradients appear last layer first, so the first layer's come first.
    inputs, _ = batch(3)
    model(inputs)
    assert seen[0] == {
        f"Gradient.{name}" for name in ("2.weight", "2.bias", "3.weight", "3.bias", "5.weight", "5.bias")
    }
    assert not network.flying
    assert not torch.equal(last, model[5].weight)


def test_priorities_names_and_declarations(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    names = [name for name, _ in model.named_parameters()]
    assert network.identity == "priority"
    assert network.declared == [f"Gradient.{name}" for name in names] + [f"Gradient.{name}.odd" for name in names]
    assert {name: -priority - 1 for name, priority in network.pushed[:8]} == {
        f"Gradient.{name}": index for index, name in enumerate(names)
    }
    assert [name for name, _ in network.pushed[8:16]] == [f"{name}.odd" for name, _ in network.pushed[:8]]
    other = make_model()
    train(other, wrap(network, other, torch.optim.SGD(other.parameters(), 0.1)), steps=1)
    assert min(priority for _, priority in network.pushed[16:]) == -16, "ids are the process's, not the optimizer's"
    assert optimizer.state_dict()


def test_same_addresses_every_other_round(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    addresses: list[dict[str, int]] = []
    for number in range(2, 6):
        train(model, optimizer, number, 1)
        addresses.append({name: tensor.data_ptr() for name, tensor, _ in network.flying.values()})
    assert addresses[0] == addresses[2]
    assert addresses[1] == addresses[3]
    assert addresses[0] != addresses[1]


@pytest.mark.parametrize("set_to_none", [False, True])
@pytest.mark.parametrize("through", ["optimizer", "model"])
def test_clearing_gradients_waits_for_nothing(network: Network, set_to_none: bool, through: str) -> None:
    truth, plain, model, optimizer = pair(network)
    for number in range(2, 5):
        for some_model, some_optimizer in ((truth, plain), (model, optimizer)):
            loss_of(some_model, number).backward()
            some_optimizer.step()
            flying = len(network.flying)
            (some_optimizer if through == "optimizer" else some_model).zero_grad(set_to_none)
            assert len(network.flying) == flying
    assert network.flying
    assert all(
        (p.grad is None) if set_to_none else not p.grad.any()
        for m in model
        for p in m._parameters.values()
        if p is not None
    )
    assert same_model(model, truth)
    assert all(p.grad is None if set_to_none else not p.grad.any() for p in model.parameters())


def test_gradients_never_cleared_are_averages_after_the_update(network: Network) -> None:
    """As with stock BytePS, backward then adds to the average."""
    truth, plain, model, optimizer = pair(network)
    for number in range(2, 5):
        for some_model, some_optimizer in ((truth, plain), (model, optimizer)):
            loss_of(some_model, number).backward()
            some_optimizer.step()
    assert same([p.grad for p in model.parameters()], [p.grad for p in truth.parameters()])
    assert same_model(model, truth)


def test_accumulation(any_order: Network) -> None:
    truth, plain, model, optimizer = pair(any_order)
    optimizer.set_backward_passes_per_step(3)
    for number in range(2, 6):
        for some_model, some_optimizer in ((truth, plain), (model, optimizer)):
            some_optimizer.zero_grad()
            for part in range(3):
                flying = len(any_order.flying)
                loss_of(some_model, number * 3 + part).backward()
                assert part == 2 or len(any_order.flying) <= flying, "a gradient leaves after the last pass only"
            some_optimizer.step()
    assert same_model(model, truth)
    with pytest.raises(AssertionError, match="backward_passes_per_step"):
        for number in range(4):
            loss_of(model, number).backward()


@pytest.mark.parametrize("skip", [True, False])
def test_clipping(any_order: Network, skip: bool) -> None:
    truth, plain, model, optimizer = pair(any_order)
    pushes = len(any_order.pushed)
    for number in range(2, 6):
        plain.zero_grad()
        loss_of(truth, number).backward()
        plain.synchronize()
        norm = nn.utils.clip_grad_norm_(truth.parameters(), 0.1)
        plain.optimizer.step()

        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.synchronize()
        assert norm == nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if skip:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    assert len(any_order.pushed) == pushes + 4 * 8, "step() after synchronize() sends nothing"
    assert same_model(model, truth)
    train(truth, plain, 6)
    train(model, optimizer, 6)
    assert same_model(model, truth)


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
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
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
    truth, plain, model, optimizer = pair(network)
    for some_model, some_optimizer in ((truth, plain), (model, optimizer)):
        some_optimizer.zero_grad()
        some_model[0].requires_grad_(False)
    before = model[0].weight.clone()
    pushes = len(network.pushed)
    train(model, optimizer, 2, 3)
    assert len(network.pushed) == pushes + 3 * 8, "every tensor in every round, or other workers wait for ever"
    assert torch.equal(before, model[0].weight)


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
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 1)
    train(model, optimizer, 2, 1)
    assert network.flying
    assert same(read(model), read(truth))
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
    """The first update makes the optimizer's state: a mode around the forward pass must not mark it."""
    outputs = []
    truth, model = make_model(), make_model()
    plain = Plain(torch.optim.Adam(truth.parameters(), 0.01))
    optimizer = wrap(network, model, torch.optim.Adam(model.parameters(), 0.01))
    optimizer._prophet._probation = 0
    for some_model, some_optimizer in ((truth, plain), (model, optimizer)):
        for number in range(4):
            some_model.train()
            some_optimizer.zero_grad()
            loss_of(some_model, number).backward()
            for bucket in optimizer._prophet._buckets:
                bucket.eager = False
            some_optimizer.step()
            some_model.eval()
            with mode():
                outputs.append(some_model(batch(9)[0]))
    assert same(outputs[:4], outputs[4:])
    assert same_model(model, truth)
    assert same(optimizer.state_dict(), plain.optimizer.state_dict())


def test_checkpoint_and_resume_between_two_steps(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 3)
    train(model, optimizer, 2, 3)
    kept = copy.deepcopy((optimizer.state_dict(), dict(model.state_dict())))
    train(model, optimizer, 5, 1)
    assert network.flying
    model.load_state_dict(kept[1])
    optimizer.load_state_dict(kept[0])
    train(truth, plain, 5, 3)
    train(model, optimizer, 5, 3)
    assert same_model(model, truth)
    assert same(optimizer.state_dict(), plain.optimizer.state_dict())


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
    truth, model = Functional(), Functional()
    plain = Plain(torch.optim.SGD(truth.parameters(), 0.1))
    optimizer = wrap(any_order, model, torch.optim.SGD(model.parameters(), 0.1))
    train(truth, plain)
    train(model, optimizer)
    assert len(any_order.flying) == 8, "no parameter of this model needs the barrier"
    assert same_model(model, truth)


def test_parameters_used_by_kept_references_are_waited_for_in_step(any_order: Network) -> None:
    def run(wrapped: bool) -> list[torch.Tensor]:
        torch.manual_seed(8)
        weights = [torch.randn(6, 6, requires_grad=True), torch.randn(6, 3, requires_grad=True)]
        bare: Any = torch.optim.SGD(weights, 0.1, momentum=0.9)
        if wrapped:
            bare = any_order.DistributedOptimizer(bare, [("a", weights[0]), ("b", weights[1])])
        optimizer = bare if wrapped else Plain(bare)
        for number in range(5):
            inputs, labels = batch(number)
            optimizer.zero_grad()
            nn.functional.cross_entropy(inputs @ weights[0] @ weights[1], labels).backward()
            optimizer.step()
            assert not any_order.flying
        return weights

    assert same(run(True), run(False))


def test_a_use_that_was_missed_brings_the_barrier_back(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    _, _, model, optimizer = pair(network)
    weight = model[0]._parameters["weight"]
    train(model, optimizer, 2, 1)
    assert weight is not None
    with caplog.at_level(logging.WARNING, "prophet"):
        (weight * 2).sum().backward()
    assert "0.weight was used before its update had arrived" in caplog.text
    optimizer.step()
    assert not network.flying
    train(model, optimizer, 3, 3)
    assert not network.flying


def test_closure_sees_averages_and_returns_its_loss(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 2)
        loss.backward()
        return loss

    expected = loss_of(copy.deepcopy(truth), 2)
    train(truth, plain, 2, 1)
    assert torch.equal(optimizer.step(closure), expected)
    assert not network.flying
    assert same_model(model, truth)


def test_step_hooks_run_once_on_averages(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append([p.grad.clone() for p in model.parameters()]))
    optimizer.register_step_post_hook(lambda *_: calls.append([p.detach().clone() for p in model.parameters()]))
    train(truth, plain, 2, 1)
    train(model, optimizer, 2, 1)
    assert not network.flying
    assert same(calls, [[p.grad for p in truth.parameters()], [p.detach() for p in truth.parameters()]])


@pytest.mark.parametrize("settings", [{}, {"fused": True}])
def test_grad_scaler(network: Network, settings: dict[str, Any]) -> None:
    truth, model = make_model(), make_model()
    reference = torch.optim.SGD(truth.parameters(), 0.1, momentum=0.9, **settings)
    plain = Plain(reference)
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, **settings))
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0), torch.amp.GradScaler("cpu", init_scale=1024.0)]
    for number in range(5):
        reference.zero_grad()
        scalers[0].scale(loss_of(truth, number)).backward()
        plain.synchronize()
        scalers[0].unscale_(reference)
        scalers[0].step(reference)
        scalers[0].update()

        optimizer.zero_grad()
        scalers[1].scale(loss_of(model, number)).backward()
        optimizer.synchronize()
        scalers[1].unscale_(optimizer)
        with optimizer.skip_synchronize():
            scalers[1].step(optimizer)
        scalers[1].update()
    assert same_model(model, truth)


class OwnStep(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class OwnName(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"compression": Network.Compression.fp16}, "compresses"),
        ({"environ": "BYTEPS_ENABLE_ASYNC"}, "BYTEPS_ENABLE_ASYNC"),
        ({"module": "byteps.torch.cross_barrier"}, "cross_barrier"),
        ({"make": OwnStep}, "OwnStep has a step()"),
        ({"make": torch.optim.LBFGS}, "LBFGS cannot"),
        ({"make": torch.optim.SparseAdam}, "SparseAdam cannot"),
        ({"differentiable": True}, "differentiable"),
        ({"alone": True}, ""),
    ],
)
def test_what_cannot_be_honoured_falls_back_with_one_warning(
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
        monkeypatch.setitem(front_end.sys.modules, change["module"], types.ModuleType("m"))
    network.workers = 1 if "alone" in change else 2
    with caplog.at_level(logging.WARNING, "prophet"):
        for _ in range(2):
            assert wrap(network, model, bare, compression=change.get("compression", NoCompression)) is bare
    assert network.fell_back == [bare, bare]
    assert len(caplog.records) == (1 if reason else 0)
    assert reason in caplog.text


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


@pytest.mark.parametrize("end", ["shutdown", "suspend"])
def test_the_last_updates_arrive_before_byteps_shuts_down(network: Network, end: str) -> None:
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 1)
    train(model, optimizer, 2, 1)
    getattr(network, end)()
    assert network.shut_down
    assert not network.flying
    assert torch.equal(model[0]._parameters["weight"], truth[0].weight)


def test_a_long_wait_is_reported_once(
    network: Network, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    clock = iter(range(0, 10**6, 45))
    monkeypatch.setattr(torch_updates, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    with caplog.at_level(logging.WARNING, "prophet"):
        assert optimizer.state_dict()
    assert [record.getMessage() for record in caplog.records] == [
        "still waiting for the gradient of 0.weight after 60 s"
    ]


def test_flush_gives_up_after_its_limit(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, model, optimizer = pair(network)
    train(model, optimizer, 2, 1)
    with monkeypatch.context() as silent:
        silent.setattr(optimizer._prophet._engine, "wait_activity", lambda limit_s: None)
        assert not optimizer._prophet.flush(limit_s=0.0)
    assert optimizer._prophet.flush(limit_s=60.0), "the network moves again"


def test_a_model_that_is_gone_leaves_nothing(network: Network) -> None:
    gc.collect()
    before = len(torch_guards._slots)
    truth, plain, model, optimizer = pair(network)
    assert len(torch_guards._slots) == before + 8
    del truth, plain, model, optimizer
    gc.collect()
    assert len(torch_guards._slots) == before


def test_strides_of_the_parameter_are_kept(network: Network) -> None:
    def make() -> nn.Module:
        torch.manual_seed(2)
        return nn.Sequential(nn.Conv2d(1, 4, (2, 3)), nn.Conv2d(4, 3, 1), nn.Flatten(), nn.Linear(3, 3)).to(
            memory_format=torch.channels_last
        )

    def run(model: nn.Module, optimizer: Any) -> None:
        for number in range(4):
            optimizer.zero_grad()
            inputs, labels = batch(number)
            nn.functional.cross_entropy(model(inputs.view(8, 1, 2, 3)), labels).backward()
            optimizer.step()

    truth, model = make(), make()
    run(truth, Plain(torch.optim.Adam(truth.parameters(), 0.01)))
    optimizer = wrap(network, model, torch.optim.Adam(model.parameters(), 0.01))
    run(model, optimizer)
    assert same_model(model, truth)
    state = optimizer.state[model[1].weight]["exp_avg"]
    assert state.stride() == model[1].weight.stride()


def test_a_copied_optimizer_is_a_plain_one(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 1)
    train(model, optimizer, 2, 1)
    both = copy.deepcopy((model, optimizer))
    file = io.BytesIO()
    torch.save(optimizer, file)
    file.seek(0)
    for copied in (both[1], torch.load(file, weights_only=False)):
        assert type(copied) is torch.optim.SGD
        assert same(copied.state_dict(), plain.optimizer.state_dict())
    train(truth, plain, 3, 2)
    train(both[0], Plain(both[1]), 3, 2)
    assert same_model(both[0], truth)


def test_the_program_may_drop_the_optimizer_with_updates_to_come(network: Network) -> None:
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 1)
    train(model, optimizer, 2, 1)
    del optimizer
    gc.collect()
    assert network.flying
    assert same_model(model, truth)
    assert not network.flying


def test_changing_gradients_that_have_left_is_reported(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 1)
    with caplog.at_level(logging.WARNING, "prophet"):
        optimizer.zero_grad()
        loss_of(model, 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    assert "call optimizer.synchronize() before changing them" in caplog.text
    assert same_model(model, truth)


def test_gradients_that_the_program_cleared_hold_no_memory(network: Network) -> None:
    _, _, model, optimizer = pair(network)
    optimizer.zero_grad()
    loss_of(model, 2).backward()
    kept = weakref.ref(model[0].weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    assert kept() is None


def test_a_frozen_or_added_parameter_is_updated_by_its_own_gradient(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].requires_grad_(False)
    optimizer = wrap(network, model, torch.optim.SGD(model[:2].parameters(), 0.1))
    train(model, optimizer, steps=1)
    model[1].requires_grad_(True)
    with caplog.at_level(logging.WARNING, "prophet"):
        optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.3})
    assert "not averaged" in caplog.text
    for number in range(1, 4):
        before = copy.deepcopy(dict(model.state_dict()))
        optimizer.zero_grad()
        loss_of(model, number).backward()
        local = {i: model[i].weight.grad.clone() for i in range(3)}
        optimizer.step()
        assert torch.equal(model[2].weight, before["2.weight"].add(local[2], alpha=-0.3))
        assert torch.equal(model[1].weight, before["1.weight"].add(local[1], alpha=-0.1))
        assert torch.equal(model[0].weight, before["0.weight"].add(average(local[0]), alpha=-0.1))


def test_compilation_brings_the_barrier_back(network: Network) -> None:
    """torch.compile may begin at any time; what it makes cannot be intercepted."""
    truth, plain, model, optimizer = pair(network)
    train(truth, plain, 2, 6)
    train(model, optimizer, 2, 4)
    assert network.flying
    train(torch.compile(model, backend="eager"), optimizer, 6, 2)
    assert not network.flying
    assert same_model(model, truth)


def test_sparse_gradients_are_refused_by_name(network: Network) -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    wrap(network, model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ValueError, match="is sparse"):
        model(torch.tensor([1, 2])).sum().backward()


# Fusion.


def test_fusion_keeps_forward_order_and_its_limits() -> None:
    small, large = 1000, FUSE_BELOW_BYTES
    assert fuse([small, small, large, small], ["f"] * 4) == [[0, 1, 3], [2]]
    assert fuse([small, small, small], ["f", "g", "f"]) == [[0, 2], [1]]
    assert fuse([small, small], [None, None]) == [[0], [1]]
    assert fuse([small, FUSE_SPAN_BYTES + 1, small], ["f"] * 3) == [[0], [1], [2]]
    size = FUSE_BELOW_BYTES - 1
    fit = FUSE_TOTAL_BYTES // size
    assert fuse([size] * (fit + 1), ["f"] * (fit + 1)) == [list(range(fit)), [fit]]


def test_a_fused_tensor_leaves_when_its_last_member_is_ready(network: Network) -> None:
    front_end.install(network, fusion=True)
    truth, plain, model, optimizer = pair(network)
    del network.pushed[:]
    train(truth, plain, 2, 4)
    train(model, optimizer, 2, 4)
    assert [priority for _, priority in network.pushed] == [-1] * 4, "all of this model fits one tensor"
    assert same_model(model, truth)
