"""A network that a test drives, in place of byteps.torch, and the truth to compare training with.

`Network` stands in for byteps.torch: a push stays in flight until the test delivers it, or until the front end waits,
which delivers one tensor. No process, no clock.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from prophet_byteps import hook
from prophet_byteps.torch import front_end
from prophet_scheduler.frontends import notices
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import references as torch_references

torch.set_num_threads(1)  # Tensors are tiny, and on a busy machine threads mostly wait for each other.


def average(gradient: torch.Tensor) -> torch.Tensor:
    """Return two workers' average, with the other one's gradient a known function of ours."""
    return gradient.mul(0.75).add_(1e-3)


class NoCompression:
    pass


class HalfPrecision:
    pass


class Network:
    """byteps.torch as the front end sees it."""

    __name__ = "byteps.torch"
    Compression = types.SimpleNamespace(none=NoCompression, fp16=HalfPrecision)

    def __init__(self, newest_first: bool = False) -> None:
        self.newest_first = newest_first
        self.workers = 2
        self.acknowledged = False
        """True if the servers have all pushes of this worker, so those in flight wait for another worker's."""
        self.declared: list[str] = []
        self.pushed: list[tuple[str, int]] = []
        self.fell_back: list[torch.optim.Optimizer] = []
        self.shut_down = False
        self.flying: dict[int, tuple[str, torch.Tensor, torch.Tensor]] = {}
        self.done: set[int] = set()
        self.memory: dict[str, tuple[int, int]] = {}
        self.last_name: dict[tuple[int, int], str] = {}

        def stock(optimizer: Any, named_parameters: Any = None, compression: Any = None, passes: int = 1) -> Any:
            names = [name for name, _ in named_parameters or []]
            if len(set(names)) != len(names):
                raise ValueError("Parameter names in named_parameters must be unique.")
            self.fell_back.append(optimizer)
            return optimizer

        stock.__module__ = self.__name__
        self.DistributedOptimizer: Callable[..., Any] = stock
        self.init: Callable[[], None] = self._init
        self.shutdown: Callable[[], None] = self._shutdown
        self.suspend: Callable[[], None] = self._suspend
        self.resume: Callable[..., None] = self._resume
        self.resets = 0

    def _init(self) -> None:
        atexit.register(self._shutdown)

    def _shutdown(self) -> None:
        self.shut_down = True

    def _resume(self, *arguments: Any) -> None:
        self.shut_down = False

    def _suspend(self) -> None:
        self.shut_down = True
        self.memory.clear()
        self.last_name.clear()

    def size(self) -> int:
        return self.workers

    def rank(self) -> int:
        return 0

    def local_size(self) -> int:
        return 1

    def declare(self, name: str) -> None:
        self.declared.append(name)

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        assert average
        assert tensor.is_contiguous()
        assert name in self.declared, "workers number tensors as they are declared"
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        assert self.memory.setdefault(name, (begin, end)) == (begin, end), "a key has one length, and one address"
        for _, other, _ in self.flying.values():
            assert end <= other.data_ptr() or other.data_ptr() + other.nbytes <= begin, "two tensors share memory"
        assert self.last_name.get((begin, end)) != name, "two rounds in turn must use different keys"
        self.last_name[begin, end] = name
        self.pushed.append((name, priority))
        handle = len(self.pushed)
        self.flying[handle] = (name, tensor, tensor.clone())
        return handle

    def poll(self, handle: int) -> bool:
        return handle in self.done

    def synchronize(self, handle: int) -> None:
        self.done.remove(handle)

    def deliver(self) -> None:
        """Deliver one tensor: the newest or the oldest in flight."""
        assert self.flying, "the front end waits, but nothing is in flight"
        assert not self.shut_down, "what is in flight when BytePS is shut down never arrives"
        handle = list(self.flying)[-1 if self.newest_first else 0]
        _, tensor, sent = self.flying.pop(handle)
        assert torch.equal(tensor, sent), "a tensor was written while in flight"
        tensor.copy_(average(tensor))
        self.done.add(handle)

    # The native hook's part.

    def wait_activity(self, limit_s: float) -> None:
        self.deliver()

    def status(self) -> Any:
        pushes = types.SimpleNamespace(waiting=0, in_flight=0 if self.acknowledged else len(self.flying))
        return types.SimpleNamespace(tasks=len(self.pushed), pending=0, in_flight_bytes=len(self.flying), pushes=pushes)

    def reset(self) -> None:
        self.resets += 1


def install(monkeypatch: pytest.MonkeyPatch, network: Network, **more: Any) -> None:
    """Put the front end in place over this network, in a process that has had no warnings and ends by itself."""
    monkeypatch.setattr(hook, "_loaded", network)
    monkeypatch.setattr(notices, "_warned", set())
    monkeypatch.delenv("BYTEPS_ENABLE_ASYNC", raising=False)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    front_end.install(network, **more)


def peek(module: nn.Module, name: str = "weight") -> torch.Tensor:
    """Return a parameter's present value, with its update or without, unseen by the guards."""
    with torch_references.blind():
        param = module._parameters[name]
        assert param is not None
        return param.detach().clone()


def weight_of(module: nn.Module, name: str = "weight") -> nn.Parameter:
    """Return a parameter, used as any program uses it."""
    value = getattr(module, name)
    assert isinstance(value, nn.Parameter)
    return value


def gradient_of(param: torch.Tensor) -> torch.Tensor:
    """Return its gradient, which must be there."""
    assert param.grad is not None
    return param.grad


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
    """The truth: the same optimizer in one process, on gradients averaged in place, in type `half` if given."""

    def __init__(self, optimizer: torch.optim.Optimizer, half: torch.dtype | None = None) -> None:
        self.optimizer = optimizer
        self.half = half
        self.skips = False

    def synchronize(self) -> None:
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.copy_(average(p.grad if self.half is None else p.grad.to(self.half)))

    def step(self, closure: Any = None) -> None:
        if not self.skips:
            self.synchronize()
        self.optimizer.step(closure)

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        self.skips = True
        yield
        self.skips = False

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


class Twins(NamedTuple):
    """A model that `plain` trains in one process, and its twin under the front end."""

    truth: Any
    plain: Plain
    model: Any
    optimizer: Any

    @property
    def sides(self) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        return (self.truth, self.plain), (self.model, self.optimizer)

    def train(self, first: int = 0, steps: int = 6) -> None:
        """Train both alike."""
        for model, optimizer in self.sides:
            train(model, optimizer, first, steps)

    def alike(self) -> bool:
        """True if weights, buffers and the optimizers' states have the same bits."""
        return same(self.optimizer.state_dict(), self.plain.optimizer.state_dict()) and same_model(
            self.model, self.truth
        )


def twins_of(
    network: Network,
    make: Callable[[Any], torch.optim.Optimizer],
    make_model: Callable[[], nn.Module] = make_model,
    half: torch.dtype | None = None,
    **more: Any,
) -> Twins:
    """Return twins whose optimizers `make` makes of their parameters; `half` as Plain's."""
    truth, model = make_model(), make_model()
    plain = Plain(make(truth.parameters()), half)
    for param in truth.parameters():
        param.grad = torch.zeros(param.shape, dtype=param.dtype) if param.requires_grad else None  # as BytePS leaves it
    compression = network.Compression.none if half is None else network.Compression.fp16
    optimizer = wrap(network, model, make(model.parameters()), compression=compression, **more)
    return Twins(truth, plain, model, optimizer)


def plain_sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, 0.1)


def pair(network: Network) -> Twins:
    """Return twins under SGD, past their probation."""
    twins = twins_of(network, lambda params: torch.optim.SGD(params, 0.1, momentum=0.9))
    twins.train(steps=2)
    return twins


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


def check_that_nothing_stays(network: Network, start: Callable[[], None]) -> None:
    """Check that what `start` leaves in flight for a model that it drops is kept until it is back, and no longer."""
    gc.collect()
    before = len(torch_guards._watched)
    start()
    torch_guards.forget_dropped()
    assert network.flying
    assert torch_guards.pending.kept, "BytePS still writes to this memory"
    while network.flying:
        network.deliver()
    torch_guards.forget_dropped()
    gc.collect()
    assert not torch_guards.pending.kept
    assert len(torch_guards._watched) == before
    assert not network.done, "a handle was not given back"
