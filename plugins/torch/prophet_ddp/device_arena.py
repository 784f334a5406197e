"""Blocks whose gradients are on a GPU: when each is sent, and what waits for it on the device.

Rule of this file: one round on a device, from copies that the host has requested to averages that a stream can wait
for, and the CUDA calls for NCCL collectives: streams, events, and threads that wait for them. issuer.py orders
operations, as on processors. The calls have run on a single GPU only (nccl.py); tests drive their users on a simulated
device (tests/support/lazy_device.py). Reasons: docs/decisions/nccl.md.

The host runs ahead of the device, so progress is known twice:

- A block is *sent* when the copies of all its gradients have been given to their streams. It is *ready*, and its
  operation may be issued, when the device has made them.
- An operation is *issued* when it and the copies back have been given to their streams. From then on the averages count
  as arrived: a reader makes its stream wait for the operation's end, and the host goes on.
- It is *done* when the device has reached its end. That frees a place in flight, and is the time that is measured.
  Updates that nobody waits for are made only then: made earlier, they would make a stream wait for the last one.

NCCL has a stream of its own. An operation there follows all earlier work of the stream that is current when it starts,
and `Work.wait()` makes the current stream wait for its end. Neither blocks the host, and torch's future is done at
once. So each operation runs between two streams of ours: `outward`, on which a block is assembled and sent, and
`homeward`, on which it is copied back. An event on the latter marks its end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from prophet_ddp.arena import DdpArena
from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation
from prophet_scheduler.frontends.torch.arena import ArenaBlock
from prophet_scheduler.frontends.torch.life import STAGE, Transition
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import CudaStreams, Event, Streams

Told = Callable[[BaseException | None], None]
"""Function called once events have passed, with the device's error or None. It must not raise."""


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
    """Thread that reports when a device has passed events. `streams` are those of the device."""

    def __init__(self, name: str, streams: DeviceStreams) -> None:
        self._streams = streams
        self._asked: queue.SimpleQueue[tuple[Sequence[Event], Told] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def when(self, events: Sequence[Event], then: Told) -> None:
        """Call `then` once these events and those of all earlier calls have passed."""
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


@dataclass(eq=False)
class DeviceOperation(JointOperation):
    """All-reduce of some blocks on a device.

    `copies`: events that its stream must wait for. `to_send` and `to_come` count the blocks that it lacks, on the host
    and on the device. `issued`: all of it was given to the device, where `end` follows it.
    """

    copies: list[Event] = field(default_factory=list)
    to_send: int = 0
    to_come: int = 0
    issued: bool = False
    end: Event = None


@dataclass
class _Ending:
    """Stand-in for torch's Work and its future, as an issuer uses them, for an operation that ends with an event.

    It keeps `kept` alive until then: the device uses its tensors.
    """

    watch: EventWatcher
    end: Event
    kept: object
    error: BaseException | None = None

    def get_future(self) -> _Ending:
        return self

    def add_done_callback(self, callback: Callable[[_Ending], None]) -> None:
        def told(error: BaseException | None) -> None:
            self.error = error
            callback(self)

        self.watch.when([self.end], told)

    def value(self) -> None:
        if self.error is not None:
            raise self.error


class DeviceArena(DdpArena):
    """Arena on one GPU. `readies` watches for the ends of a block's copies, and `ends` for those of operations."""

    def __init__(
        self,
        slots: Sequence[Slot],
        fusion: bool,
        streams: Callable[[Any], Streams],
        issuer: Issuer,
        log: EventLog,
        readies: EventWatcher,
        ends: EventWatcher,
        half: torch.dtype | None = None,
    ) -> None:
        super().__init__(slots, fusion, streams, issuer, log, half)
        self._streams = cast(DeviceStreams, slots[0].streams)
        self._readies, self._ends = readies, ends

    def operations(self, collectives: Iterable[Sequence[int]]) -> list[JointOperation]:
        made = super().operations(collectives)
        for operation, count in self._incomplete.items():
            operation = cast(DeviceOperation, operation)
            operation.to_send = operation.to_come = count
        return made

    def _generated(self) -> None:
        self._readies.when([], lambda _error: self._log.round_ended(time.monotonic()))  # after the last block's copies

    def under_way(self) -> list[JointOperation]:
        return list(self._incomplete)

    def stage(self, slot: Slot, how: Transition = STAGE) -> bool:
        if self._streams.capturing():
            raise RuntimeError(
                "backward is captured into a CUDA graph, which Prophet over NCCL cannot be part of; train without "
                "PROPHET_DDP_NCCL, or capture the module before DistributedDataParallel wraps it"
            )
        # If nobody waited for the last round's average, its operation may still use this memory.
        self._streams.before_average(slot.ends())
        return super().stage(slot, how)

    def landed(self, slot: Slot) -> bool:
        return self.arrived(slot) and all(self._streams.passed(end) for end in slot.ends())

    def _joint(self, start: Callable[[], Any], id: int, size_bytes: int, then: Callable[[], None]) -> JointOperation:
        operation = DeviceOperation(lambda: self._issue(operation, start, then), id, size_bytes)
        return operation

    def _issue(self, operation: DeviceOperation, start: Callable[[], Any], then: Callable[[], None]) -> _Ending:
        """Give the whole operation to the device."""
        streams = self._streams
        with streams.outward():
            for copy in operation.copies:
                streams.follow(copy)
            work = start()
        with streams.homeward():
            work.wait()
            then()
            operation.end = streams.mark()
        operation.issued = True
        operation.copies = []
        self._issuer.tell()
        return _Ending(self._ends, operation.end, (start, then))

    def _send(self, block: ArenaBlock) -> JointOperation:
        operation = cast(DeviceOperation, self._operations[block])
        operation.copies += block.copies
        operation.to_send -= 1
        operation.coming = not operation.to_send
        id, size_bytes = block.id, block.data.nbytes
        self._readies.when(block.copies, lambda error: self._made(operation, id, size_bytes, error))
        return operation

    def _made(self, operation: DeviceOperation, id: int, size_bytes: int, error: BaseException | None) -> None:
        """Handle a block whose copies the device has finished."""
        try:
            if error is not None:
                raise error
            self._log.added(id, size_bytes, time.monotonic())
            operation.to_come -= 1
            if not operation.to_come:
                self._issuer.ready(operation)
        except BaseException as what:
            self._issuer.fail(what)

    def _back(self, block: ArenaBlock) -> bool:
        operation: DeviceOperation = block.flight
        if operation.issued:
            block.end = operation.end
        return operation.issued
