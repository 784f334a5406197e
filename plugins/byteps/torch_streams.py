"""Which stream has to wait for which: every order between two streams of a device that the front end relies on.

Rule of this file: streams and events, and nothing about gradients or optimizers. On a processor there are no streams,
and each method returns at once.

What torch orders by itself is what one stream does, one thing after another. Five things here cross streams:

- A fused tensor's gradients are copied into it by hooks, each on the stream on which its backward ran. BytePS records
  one event, on the current stream, when the tensor is pushed; at the first push of a key it does so in a thread of its
  own, where the current stream is the default one. So before a push both streams wait for all copies.
- BytePS's result is in the tensor when its handle is done, but the division by the number of workers has only been
  started, on the default stream of BytePS's thread. Whoever reads the average waits for that stream.
- An update runs on the stream on which step() was called, its home, as the optimizer would have. The stream that is
  current where the parameter is used waits for it, then and at each later use.
- The next copy into the tensor waits until that update has read the average.
- What the update reads or writes on its home may have been allocated on another stream: the allocator is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch

Event = Any
"""What `mark` returns: an event that a stream can wait for, or None where there is nothing to wait for."""


class Streams:
    """The streams of this process's devices, as torch.cuda has them."""

    def streamed(self, device: torch.device) -> bool:
        """Whether work on `device` is only started when a call of torch returns."""
        return device.type == "cuda"

    def current(self, device: torch.device) -> Any:
        """The stream that is current on `device` in this thread; None on a processor."""
        return torch.cuda.current_stream(device) if self.streamed(device) else None

    def default(self, device: torch.device) -> Any:
        """The stream on which BytePS's threads work; only where `streamed`."""
        return torch.cuda.default_stream(device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, `stream` is the current one."""
        return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        """`tensor` is used on `stream`: its memory is not given away before that is over."""
        if stream is not None:
            tensor.record_stream(stream)

    def mark(self, device: torch.device) -> Event:
        """An event after all that the current stream has been given so far."""
        return None if not self.streamed(device) else self.current(device).record_event()

    def follow(self, device: torch.device, event: Event) -> None:
        """The current stream goes on only after `event`."""
        if event is not None:
            self.current(device).wait_event(event)

    def before_push(self, device: torch.device, copies: Iterable[Event]) -> None:
        """The copies into a tensor come before whatever event BytePS records for it."""
        if not self.streamed(device):
            return
        current, default = self.current(device), self.default(device)
        for event in copies:
            current.wait_event(event)
            default.wait_event(event)

    def before_average(self, device: torch.device) -> None:
        """BytePS's division, which was started on the default stream, comes before what follows."""
        if self.streamed(device):
            self.current(device).wait_event(self.default(device).record_event())
