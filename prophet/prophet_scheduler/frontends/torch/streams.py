"""Which stream has to wait for which: every order between two streams of a device that the front end relies on.

Rule of this file: streams and events, and nothing about gradients or optimizers. A processor has no streams; there each
method returns at once.

What torch orders by itself is what one stream does, one thing after another. Five things here cross streams:

- A block's gradients are copied to their places by hooks, each on the stream on which its backward ran. BytePS records
  one event, on the current stream, when the tensor is pushed; at the first push of a key it does so in a thread of its
  own, where the current stream is the default one. So before a push both streams wait for all copies.
- BytePS's result is in the tensor when its handle is done, but the division by the number of workers has only been
  started, on the default stream of BytePS's thread. Whoever reads the average waits for that stream.
- An update runs on the stream on which step() was called, its home, as the optimizer would have. The stream that is
  current where the parameter is used waits for it, then and at each later use.
- The next copy to a gradient's place waits until that update has read the average there.
- What the update reads or writes on its home may have been allocated on another stream: so the allocator has to know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

Event = Any
"""What `mark` returns: an event that a stream can wait for, or None where there is nothing to wait for."""
Stream = Any
"""A stream of torch, None on a device that has none."""


class Streams:
    """Those of one device. This one has none: a call of torch has done its work when it returns.

    `home` is the stream on which step() was called.
    """

    home: Stream = None

    def current(self) -> Stream:
        """The stream that is current in this thread."""
        return None

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Within it, `stream` is the current one."""
        return contextlib.nullcontext()

    def keep(self, tensor: torch.Tensor, stream: Stream) -> None:
        """`tensor` is used on `stream`: its memory is not given away before that is over."""

    def mark(self) -> Event:
        """An event after all that the current stream has been given so far."""
        return None

    def follow(self, event: Event) -> None:
        """The current stream goes on only after `event`."""

    def before_push(self, copies: Iterable[Event]) -> None:
        """The copies into a tensor come before whatever event BytePS records for it."""

    def before_average(self, ends: Iterable[Event] = ()) -> None:
        """What made the averages comes before what follows: BytePS's division, which was started on the default stream,
        or on an engine that marks the end of each transfer those events.
        """

    def before_look(self, copied: Event) -> None:
        """The copy of an average to a `.grad` comes before what the program does with it."""


class CudaStreams(Streams):
    """Those of a GPU, as torch.cuda has them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def current(self) -> Stream:
        return torch.cuda.current_stream(self._device)

    def default(self) -> Stream:
        """The stream on which BytePS's threads work."""
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
    """The streams of this device."""
    return CudaStreams(device) if device.type == "cuda" else Streams()
