"""The port to a GPU for collectives of NCCL: its streams, its events and who waits for them.

Rule of this file: calls of CUDA on this way, besides what prophet_scheduler/frontends/torch/streams.py has for any
engine. device_arena.py orders things by it. Not yet run on a GPU: tests drive its users on a device of their own
(tests/support/lazy_device.py).

NCCL works on a stream of its own. An operation there comes after all earlier work of the stream that is current at its
start, and `Work.wait()` makes the then current stream wait for its end. Neither waits on the host, and torch's future
of it is done at once. So two streams of ours surround it: `outward`, on which a block is brought together and sent, and
`homeward`, on which it is put back. The end of an operation is an event of ours on the latter, and whoever reads an
average waits for that event.

The host learns of events in threads (`EventWatcher`) that block in cudaEventSynchronize. It neither polls nor holds the
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
"""Function called when events have passed, with the device's error if it failed. Raises nothing."""


class EventWatch(Protocol):
    """Watch that tells when the device has passed events."""

    def when(self, events: Sequence[Event], then: Told) -> None:
        """Call `then` when all of them have passed, and all of earlier calls."""
        ...


class DeviceStreams(CudaStreams):
    """Streams of one module's GPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._outward, self._homeward = self._make(), self._make()

    def _make(self) -> Any:
        return torch.cuda.Stream(self._device)

    def outward(self) -> AbstractContextManager[Any]:
        """Make the stream on which blocks leave current within the context."""
        return self.on(self._outward)

    def homeward(self) -> AbstractContextManager[Any]:
        """Make the stream on which they are put back current within the context."""
        return self.on(self._homeward)

    def mark(self) -> Event:
        event = torch.cuda.Event(blocking=True)
        event.record(self.current())
        return event

    def before_push(self, copies: Iterable[Event]) -> None:
        """Do nothing: the operation itself follows them, on its stream."""

    def before_average(self, ends: Iterable[Event] = ()) -> None:
        for event in ends:
            self.follow(event)

    def before_look(self, copied: Event) -> None:
        """Wait on the host: a `.grad` may be read on any stream, also on one that was made to wait before this copy."""
        self.synchronize(copied)

    def passed(self, event: Event) -> bool:
        """True if the device has passed it."""
        return event is None or bool(event.query())

    def synchronize(self, event: Event) -> None:
        """Wait for it on the host. Raises CUDA's error if the device has failed."""
        event.synchronize()

    def enter_thread(self) -> None:
        """Set the device of a thread of ours, before anything else: else it would set up the process's first device."""
        torch.cuda.set_device(self._device)

    def capturing(self) -> bool:
        """True if work given to the current stream goes into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()


class EventWatcher:
    """EventWatch that is a thread. `streams` are those of its device."""

    def __init__(self, name: str, streams: DeviceStreams) -> None:
        self._streams = streams
        self._asked: queue.SimpleQueue[tuple[Sequence[Event], Told] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def when(self, events: Sequence[Event], then: Told) -> None:
        self._asked.put((events, then))

    def close(self, limit_s: float) -> None:
        """End the thread, after what it was asked. After `limit_s` seconds it is left alone."""
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
            del asked, events, then, error  # A thread that waits for the next must not keep tensors alive.
