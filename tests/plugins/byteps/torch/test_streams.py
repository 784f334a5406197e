"""BytePS on a GPU, without one: real rounds and late updates on a device that is late.

The device does what it is given later, each stream for itself (support/lazy_device.py), so a missing wait gives other
weights. Waits are left out one by one, to see that each would show.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from prophet_byteps.torch import keyed_rounds
from prophet_scheduler.frontends.torch import program_state
from prophet_scheduler.frontends.torch import references as torch_references
from prophet_scheduler.frontends.torch.streams import CudaStreams, Streams, streams_of
from support.front_end import forget
from support.lazy_device import Device, LazyMode, Stream
from support.torch_network import Network, Plain, average, batch, install, make_model, peek, same, train, wrap

STEPS = 6
SEEDS = range(5)


class LateStreams(CudaStreams):
    """CudaStreams on a lazy device. `kept` are the streams for which memory was kept."""

    def __init__(self, device: Device) -> None:
        self._lazy = device
        self._default = Stream(device)
        self.kept: set[Stream] = set()

    def current(self) -> Stream:
        return self._lazy.current

    def default(self) -> Stream:
        return self._default

    def on(self, stream: Any) -> Any:
        return self._lazy.on(stream)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self.kept.add(stream)


class LateNetwork(Network):
    """BytePS on a GPU: it goes by an event, copies on streams of its own, and divides on the default one."""

    def __init__(self, device: Device, streams: LateStreams) -> None:
        super().__init__()
        self._device = device
        self._streams = streams

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        # The first time in a thread of its own, which knows nothing of the program's current stream.
        first = name not in [old for old, _ in self.pushed]
        self.pushed.append((name, priority))
        handle, data = len(self.pushed), tensor.data
        event = (self._streams.default() if first else self._device.current).record_event()
        event.call(lambda: self._device.at(self._device.some_time(), lambda: self._travel(handle, data)))
        return handle

    def _travel(self, handle: int, data: torch.Tensor) -> None:
        sent: list[torch.Tensor] = []
        self._device.execute(lambda: sent.append(data.clone()))

        def divide() -> None:
            data.copy_(average(sent[0]))

        def come_back() -> None:
            self._streams.default().work(divide)
            self.done.add(handle)  # whoever sees that comes after the division's start, and not after its end

        self._device.at(self._device.some_time(), come_back)

    def wait_activity(self, limit_s: float) -> None:
        assert self._device.step(), "the front end waits, but nothing is in flight"


BATCHES = [batch(number) for number in range(STEPS)]  # a late device would draw them twice


def make() -> nn.Sequential:
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, foreach=False)


@pytest.fixture(scope="module")
def truth() -> nn.Module:
    """The model that one process trains without a device."""
    model = make()
    train(model, Plain(sgd(model)), steps=STEPS)
    return model


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Updates stay on the device, which is a mode here."""
    monkeypatch.setattr(program_state, "of_now", tuple)
    monkeypatch.setattr(program_state, "can_hold_later", lambda held: True)
    monkeypatch.setattr(torch_references, "program_has_modes", lambda: False)
    yield
    forget()


def run(
    monkeypatch: pytest.MonkeyPatch, seed: int, fusion: bool = True, sync: bool = False
) -> tuple[nn.Module, Device, LateStreams]:
    """Train on the device: forward on a stream beside the main one, and backward of each parameter on its own."""
    device = Device(seed)
    streams = LateStreams(device)
    network = LateNetwork(device, streams)
    monkeypatch.setattr(keyed_rounds, "streams_of", lambda _device: streams)
    install(monkeypatch, network, fusion=fusion)
    model = make()
    optimizer = wrap(network, model, sgd(model))
    beside, main = Stream(device), device.main
    sides: dict[torch.Tensor, Stream] = {param: Stream(device) for param in model.parameters()}

    def to_its_stream(param: torch.Tensor, _gradient: torch.Tensor) -> None:
        sides[param].wait_event(device.current.record_event())
        device.current = sides[param]

    for param in sides:
        param.register_hook(functools.partial(to_its_stream, param))
    # The nodes of autograd that add to `.grad`.
    ends: list[Any] = [param.view_as(param).grad_fn.next_functions[0][0] for param in sides]  # type: ignore[union-attr]
    for end in ends:
        end.register_hook(lambda *_: setattr(device, "current", main))
    with LazyMode(device):
        for number in range(STEPS):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            beside.wait_event(main.record_event())
            with device.on(beside):
                loss = nn.functional.cross_entropy(model(BATCHES[number][0]), BATCHES[number][1])
            main.wait_event(beside.record_event())
            loss.backward()
            device.current = main
            for side in sides.values():
                main.wait_event(side.record_event())
            if sync:
                optimizer.synchronize()
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
            for _ in range(device.chance.randrange(20)):
                device.step()
        optimizer.finish_updates()
    device.run()
    return model, device, streams


def alike(model: nn.Module, truth: nn.Module) -> bool:
    return same(dict(model.state_dict()), dict(truth.state_dict()))


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_every_stream_waits_for_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, fusion: bool, sync: bool, truth: nn.Module
) -> None:
    for seed in SEEDS:
        model, device, streams = run(monkeypatch, seed, fusion, sync)
        assert alike(model, truth), seed
        assert sync or streams.kept == {device.main}, "memory that an update uses is kept for its stream"


@pytest.mark.parametrize("left_out", ["before_push", "before_average", "follow"])
def test_each_wait_that_is_left_out_shows(monkeypatch: pytest.MonkeyPatch, left_out: str, truth: nn.Module) -> None:
    monkeypatch.setattr(LateStreams, left_out, lambda *arguments: None)
    assert not all(alike(run(monkeypatch, seed)[0], truth) for seed in SEEDS)


def test_each_device_has_its_kind_of_streams() -> None:
    assert type(streams_of(torch.device("cpu"))) is Streams
    assert type(streams_of(torch.device("cuda:1"))) is CudaStreams


def test_without_streams_nothing_is_called(network: Network) -> None:
    model = make_model()
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1))
    train(model, optimizer, steps=3)
    assert all(slot.updated is None for slot in optimizer._prophet._order)
    with torch_references.blind():
        assert peek(model[0]).shape == model[0].weight.shape
