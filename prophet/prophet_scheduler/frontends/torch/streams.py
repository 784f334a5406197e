"""Order between streams: every order between two streams of a device on which the front end relies.

Rule of this file: streams and events, and nothing about gradients or optimizers. A CPU has no streams, so there each
method returns at once.

torch itself orders work only within a stream. Five things here cross streams:

- Hooks copy a block's gradients to their places, each on the stream on which its backward ran. BytePS records one event
  on the current stream when the tensor is pushed. For a key's first push it does so in a thread of its own, where the
  default stream is current. So before a push, both streams wait for all copies.
- BytePS's result is in the tensor when its handle is done. But the division by the number of workers has only been
  started, on the default stream of BytePS's thread. So a reader of the average waits for that stream.
- An update runs on its home, the stream on which step() was called, as the optimizer would have. The current stream
  waits for the update wherever the parameter is used, then and later.
- The next copy to a gradient's place waits until the update has read the average there.
- Tensors that the update reads or writes on its home stream may have been allocated on another stream, which the
  allocator has to know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

Event = Any
"""Event that a stream can wait for; None if there is nothing to wait for."""
Stream = Any
"""torch stream; None on a device without streams."""


class Streams:
    """Streams of one device. This base class is for devices without streams, where torch's calls are synchronous.

    `home` is the stream on which step() was called.
    """

    home: Stream = None

    def current(self) -> Stream:
        """Return this thread's current stream."""
        return None

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Make `stream` the current stream within the context."""
        return contextlib.nullcontext()

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Keep the memory of `tensor` until its use on `stream` has finished."""

    def mark(self) -> Event:
        """Return an event after all work submitted to the current stream so far."""
        return None

    def follow(self, event: Event) -> None:
        """Make the current stream wait for `event`."""

    def before_push(self, copies: Iterable[Event]) -> None:
        """Order the copies into a tensor before any event that BytePS records for it."""

    def before_average(self, ends: Iterable[Event] = ()) -> None:
        """Order the end of the averages before subsequent work. BytePS's average ends with its division, started on the
        default stream; an engine that marks the end of each transfer passes `ends`.
        """

    def before_look(self, copied: Event) -> None:
        """Order the copy of an average to a `.grad` before the program's use of that."""


class CudaStreams(Streams):
    """Streams of a GPU, from torch.cuda."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Stream:
        return torch.cuda.current_stream(self._device)

    def default(self) -> Stream:
        """Return the stream on which BytePS's threads work."""
        return torch.cuda.default_stream(self._device)

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def mark(self) -> Event:
        return self.current().record_event()

    def follow(self, event: Event) -> None:
        if event is not None:
            self.current().wait_event(event)

    def before_push(self, copies: Iterable[Event]) -> None:
        current, default = self.current(), self.default()
        for event in copies:
            current.wait_event(event)
            default.wait_event(event)

    def before_average(self, ends: Iterable[Event] = ()) -> None:
        self.current().wait_event(self.default().record_event())


def streams_of(device: torch.device) -> Streams:
    """Return the streams of this device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()
