"""CUDA calls for NCCL collectives: their streams, their events, and the threads that wait for them.

Rule of this file: such calls beyond those of prophet_scheduler/frontends/torch/streams.py, which serve any engine.
device_arena.py uses them to order work. They have run on a single GPU only (nccl.py); tests drive their users on a
simulated device (tests/support/lazy_device.py).

NCCL has a stream of its own. An operation there follows all earlier work of the stream that is current when it starts,
and `Work.wait()` makes the stream current at that moment wait for its end. Neither call blocks the host, and torch's
future of the operation is done at once. So each operation runs between two streams of ours: `outward`, on which a block
is assembled and sent, and `homeward`, on which it is copied back. An event on the latter marks the end of the
operation, and readers of an average wait for that event.

The host learns of events in threads (`EventWatcher`) that block in cudaEventSynchronize. They neither poll nor hold the
GIL, since events are made with cudaEventBlockingSync.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from prophet_scheduler.frontends.torch.streams import CudaStreams, Event

Told = Callable[[BaseException | None], None]
"""Function called once events have passed, with the device's error or None. It must not raise."""


class EventWatch(Protocol):
    """Watch that reports when the device has passed events."""

    def when(self, events: Sequence[Event], then: Told) -> None:
        """Call `then` once these events and those of all earlier calls have passed."""
        ...


class DeviceStreams(CudaStreams):
    """Streams of one module's GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._outward, self._homeward = self._make(), self._make()

    def _make(self) -> Any:
        return torch.cuda.Stream(self._device)

    def outward(self) -> AbstractContextManager[Any]:
        """Make the stream on which blocks are sent current within the context."""
        return self.on(self._outward)

    def homeward(self) -> AbstractContextManager[Any]:
        """Make the stream on which blocks are copied back current within the context."""
        return self.on(self._homeward)

    def mark(self) -> Event:
        event = torch.cuda.Event(blocking=True)
        event.record(self.current())
        return event

    def before_push(self, copies: Iterable[Event]) -> None:
        """Do nothing: the operation's stream waits for the copies itself."""

    def before_average(self, ends: Iterable[Event] = ()) -> None:
        for event in ends:
            self.follow(event)

    def before_look(self, copied: Event) -> None:
        """Block the host: any stream may read a `.grad`, even one that was synchronised before this copy."""
        self.synchronize(copied)

    def passed(self, event: Event) -> bool:
        """Return True if the device has passed the event; None has always passed."""
        return event is None or bool(event.query())

    def synchronize(self, event: Event) -> None:
        """Block the host until the event has passed. Raises CUDA's error if the device has failed."""
        event.synchronize()

    def enter_thread(self) -> None:
        """Set the device of a thread of ours. Call it first, or CUDA sets up the process's first device."""
        torch.cuda.set_device(self._device)

    def capturing(self) -> bool:
        """Return True if work given to the current stream is captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()


class EventWatcher:
    """EventWatch with a thread. `streams` are those of its device."""

    def __init__(self, name: str, streams: DeviceStreams) -> None:
        self._streams = streams
        self._asked: queue.SimpleQueue[tuple[Sequence[Event], Told] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def when(self, events: Sequence[Event], then: Told) -> None:
        self._asked.put((events, then))

    def close(self, limit_s: float) -> None:
        """End the thread once it has handled all requests. It is abandoned after `limit_s` seconds."""
        self._asked.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        prepared = False
        while (asked := self._asked.get()) is not None:
            events, then = asked
            error: BaseException | None = None
            try:
                if not prepared:
                    self._streams.enter_thread()
                    prepared = True
                for event in events:
                    self._streams.synchronize(event)
            except BaseException as what:
                error = what
            then(error)
            del asked, events, then, error  # They must not keep tensors alive while the thread waits for the next.
