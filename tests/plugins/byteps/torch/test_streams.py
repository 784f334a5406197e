"""The order between streams, on a machine without any: a recorder that fails where one does not wait for another.

Streams and events are stood in for by vector clocks. What the front end reads and writes is taken from the operators
that it really runs; what the program and BytePS do is told to the recorder at the point where they would do it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from prophet_byteps.torch import keyed_rounds as torch_rounds
from prophet_byteps.torch.rounds import OptimizerRounds
from prophet_scheduler.frontends.torch import guards as torch_guards
from prophet_scheduler.frontends.torch import program_state
from prophet_scheduler.frontends.torch import references as torch_references
from prophet_scheduler.frontends.torch.arena import Arena, ArenaBlock
from prophet_scheduler.frontends.torch.streams import CudaStreams, Streams, streams_of
from support.torch_network import Network, install, loss_of, make_model, peek, train, wrap

Clock = dict[str, int]
VIEWS = ("as_strided", "view", "detach", "alias", "t", "empty", "zeros")


class FakeStream:
    """All work given to it happens after everything in `clock`."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name
        self.clock: Clock = {name: 0}

    def record_event(self) -> Clock:
        return dict(self.clock)

    def wait_event(self, event: Clock) -> None:
        for name, time in event.items():
            self.clock[name] = max(self.clock.get(name, 0), time)

    def wait_stream(self, other: FakeStream) -> None:
        self.wait_event(other.record_event())


class Recorder(TorchDispatchMode):
    """Recorder of who touched which memory last, which raises if the next one does not come after that."""

    __module__ = "torch.of_tests"  # Under a mode of the program's Prophet would wait for everything.

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.streams = {name: FakeStream(self, name) for name in ("default", "main", "left", "right")}
        self.now = self.streams["main"]
        self.host: Clock = {}
        self.writes: dict[int, tuple[str, int]] = {}
        self.reads: dict[int, list[tuple[str, int]]] = {}
        self.kept: list[tuple[int, str]] = []
        self.watching = False

    def touch(self, tensor: torch.Tensor, what: str, writes: bool, stream: FakeStream | None = None) -> None:
        stream = stream or self.now
        stream.wait_event(self.host)
        place = tensor.data_ptr()
        earlier = [self.writes[place]] if place in self.writes else []
        if writes:
            earlier += self.reads.get(place, [])
        for other, time in earlier:
            if stream.clock.get(other, 0) < time:
                raise AssertionError(f"{what} on {stream.name} does not wait for {other}")
        stream.clock[stream.name] += 1
        access = (stream.name, stream.clock[stream.name])
        if writes:
            self.writes[place], self.reads[place] = access, []
        else:
            self.reads.setdefault(place, []).append(access)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if self.watching and name not in VIEWS:
            with self.watch(False):
                for value, argument in zip(args, func._schema.arguments, strict=False):
                    written = argument.alias_info is not None and argument.alias_info.is_write
                    for tensor in value if isinstance(value, list | tuple) else (value,):
                        if isinstance(tensor, torch.Tensor) and tensor.numel() > 1:
                            self.touch(tensor, name, written)
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def watch(self, watching: bool) -> Iterator[None]:
        self.watching, before = watching, self.watching
        try:
            yield
        finally:
            self.watching = before

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        self.now, before = stream, self.now
        try:
            yield
        finally:
            self.now = before


class FakeStreams(CudaStreams):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(torch.device("cpu"))
        self.recorder = recorder

    def current(self) -> FakeStream:
        return self.recorder.now

    def default(self) -> FakeStream:
        return self.recorder.streams["default"]

    def on(self, stream: Any) -> Any:
        return self.recorder.on(stream)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self.recorder.kept.append((tensor.data_ptr(), stream.name))


class StreamedNetwork(Network):
    """BytePS on a GPU: it goes by an event, works on streams of its own, and divides on the default one."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder
        self.events: dict[int, Clock] = {}

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        # The first time in a thread of its own, which knows nothing of the program's current stream.
        first = name not in [old for old, _ in self.pushed]
        stream = self.recorder.streams["default"] if first else self.recorder.now
        with self.recorder.watch(False):
            for part in self.parts_of(tensor):
                self.recorder.touch(part, "BytePS's copy", False, stream)
            handle = super().byteps_push_pull(tensor, average, name, priority)
            self.events[handle] = stream.record_event()
            return handle

    def deliver(self) -> None:
        with self.recorder.watch(False):
            handle, (_, tensor, _) = next(iter(self.flying.items()))
            super().deliver()
            # BytePS's threads wait for the event and for their own copies before they divide, and whoever sees the
            # handle done comes after that. The division itself has then only been started.
            for stream, time in self.events[handle].items():
                self.recorder.host[stream] = max(time, self.recorder.host.get(stream, 0))
            for part in self.parts_of(tensor):
                self.recorder.touch(part, "BytePS's division", True, self.recorder.streams["default"])

    def parts_of(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return next([slot.view for slot in block.slots] for block in blocks() if block.data is flat)


def blocks() -> list[ArenaBlock]:
    arenas = [owner._keyed.arena for owner in torch_guards.owners()]
    return [block for arena in arenas if arena is not None for block in arena.blocks]


class Layer(nn.Linear):
    """A layer whose work goes to a stream of its own."""

    def __init__(self, recorder: Recorder, stream: str) -> None:
        super().__init__(6, 6)
        self.recorder = recorder
        self.stream = recorder.streams[stream]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for param in (self.weight, self.bias):
            with self.recorder.watch(False):
                self.recorder.touch(param, "forward", False)
        return super().forward(inputs)


class TwoStreams(nn.Module):
    """Two layers side by side, each on its stream, and one after them; streams wait as torch's docs ask for."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.recorder = recorder
        self.left, self.right = Layer(recorder, "left"), Layer(recorder, "right")
        self.shared = Layer(recorder, "main")

    @property
    def layers(self) -> tuple[Layer, Layer]:
        return self.left, self.right

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        main, hidden = self.recorder.now, []
        for layer in self.layers:
            layer.stream.wait_stream(main)
        for layer in self.layers:
            with self.recorder.on(layer.stream):
                hidden.append(self.shared(layer(inputs)))
        for layer in self.layers:
            main.wait_stream(layer.stream)
        result: torch.Tensor = self.shared(sum(hidden)[:, :3].repeat(1, 2))[:, :3]
        return result


def run(monkeypatch: pytest.MonkeyPatch, recorder: Recorder, fusion: bool = True, sync: bool = False) -> list[Any]:
    """Trains for some steps under the recorder; raises AssertionError at the first missing wait."""
    network = StreamedNetwork(recorder)
    monkeypatch.setattr(torch_rounds, "streams_of", lambda device: FakeStreams(recorder))
    monkeypatch.setattr(program_state, "of_now", tuple)
    monkeypatch.setattr(program_state, "can_hold_later", lambda held: True)
    for owner, name in ((Arena, "stage"), (OptimizerRounds, "_update_here"), (OptimizerRounds, "synchronize")):
        monkeypatch.setattr(owner, name, _watched(getattr(owner, name), recorder))
    install(monkeypatch, network, fusion=fusion)
    model = TwoStreams(recorder)
    for layer in (*model.layers, model.shared):
        for param in layer.parameters():
            # Backward runs a gradient's hooks on the stream of its forward pass.
            param.register_hook(lambda grad, layer=layer: setattr(recorder, "now", layer.stream))
    optimizer = wrap(network, model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    main = recorder.now
    with recorder:
        for number in range(6):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = loss_of(model, number)
            for stream in recorder.streams.values():
                if stream.name != "default":
                    stream.wait_stream(main)
            loss.backward()
            recorder.now = main
            for layer in model.layers:
                main.wait_stream(layer.stream)
            if sync:
                optimizer.synchronize()
            optimizer.step()
        optimizer.finish_updates()
    return [p.detach().clone() for p in model.parameters()]


def _watched(method: Any, recorder: Recorder) -> Any:
    def wrapper(*args: Any) -> Any:
        with recorder.watch(True):
            return method(*args)

    wrapper.__name__ = method.__name__
    return wrapper


@pytest.mark.parametrize("fusion", [True, False])
@pytest.mark.parametrize("sync", [True, False])
def test_every_stream_waits_for_what_it_needs(monkeypatch: pytest.MonkeyPatch, fusion: bool, sync: bool) -> None:
    recorder = Recorder()
    run(monkeypatch, recorder, fusion, sync)
    assert {"default", "main", "left", "right"} <= set(recorder.streams["main"].clock)


@pytest.mark.parametrize(
    ("left_out", "missing"),
    [
        ("before_push", "BytePS's copy"),
        ("before_average", "does not wait for default"),
        ("follow", "does not wait for"),
    ],
)
def test_the_recorder_notices_each_wait_that_is_left_out(
    monkeypatch: pytest.MonkeyPatch, left_out: str, missing: str
) -> None:
    monkeypatch.setattr(FakeStreams, left_out, lambda *arguments: None)
    with pytest.raises(AssertionError, match=missing):
        run(monkeypatch, Recorder())


def test_memory_that_an_update_uses_is_kept_for_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    run(monkeypatch, recorder)
    assert {name for _, name in recorder.kept} == {"main"}


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
