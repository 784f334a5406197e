"""A device on a virtual clock, in place of a GPU and NCCL: it does its work later, stream by stream.

Within `LazyMode` an operator of torch only joins the queue of the current stream; its result is NaN until its turn.
Streams wait for nothing but events. So if one fails to wait for another, the result is wrong. The host goes on
meanwhile, and time passes only while it waits.
"""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from prophet_ddp.device_arena import DeviceStreams, Told
from prophet_mlfabric.studies.agenda import Action, Agenda
from prophet_scheduler.frontends.torch import references
from support.collectives import Future


def peers(data: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks, with the others' part a known function of ours.

    It is exact in any precision: rounding by torch on a CPU may depend on an element's place in memory.
    """
    return data.mul(0.5)


class Device:
    """The clock, the streams, and the host's current one."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_s = 0.0
        self._agenda = Agenda()
        self.main = Stream(self)
        self.current = self.main
        self.executing = False
        self.most_in_flight = self.in_flight = 0

    def at(self, delay_s: float, action: Action) -> None:
        """Run `action` after `delay_s`."""
        self._agenda.at(self.now_s + delay_s, action)

    def some_time(self) -> float:
        return self.chance.choice([0.0, self.chance.random(), 20 * self.chance.random()])

    def step(self) -> bool:
        """Run the next action; return False if there is none."""
        if not self._agenda:
            return False
        self.now_s, action = self._agenda.take()
        # Operators of other actions also go to the device, even while the host waits within an operator.
        with contextlib.nullcontext() if torch._C._len_torch_dispatch_stack() else LazyMode(self):
            action()
        return True

    def run(self, until: Callable[[], object] = lambda: False) -> None:
        """Let the host wait until `until()`; without `until`, for all actions."""
        while not until() and self.step():
            pass

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        self.current, before = stream, self.current
        try:
            yield
        finally:
            self.current = before

    def execute(self, action: Action) -> None:
        """Run `action` on the memory itself, without torch's counters of versions, which are the host's."""
        self.executing, before = True, self.executing
        try:
            with torch.no_grad(), references.blind():
                action()
        finally:
            self.executing = before


class LazyEvent:
    def __init__(self) -> None:
        self.passed = False
        self._waiting: list[Action] = []

    def call(self, action: Action) -> None:
        """Run `action` when the event has passed, or at once if it has."""
        if self.passed:
            action()
        else:
            self._waiting.append(action)

    def come_by(self) -> None:
        self.passed = True
        for action in self._waiting:
            action()


class Stream:
    """Queue of things to do one after another. A thing is a function that calls its argument when it has ended."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._things: deque[Callable[[Action], None]] = deque()
        self._busy = False

    def give(self, thing: Callable[[Action], None]) -> None:
        self._things.append(thing)
        self._device.at(0.0, self._go_on)

    def work(self, action: Action) -> None:
        def begin(ended: Action) -> None:
            def end() -> None:
                self._device.execute(action)
                ended()

            self._device.at(self._device.some_time(), end)

        self.give(begin)

    def record_event(self) -> LazyEvent:
        event = LazyEvent()

        def come_by(ended: Action) -> None:
            event.come_by()
            ended()

        self.give(come_by)
        return event

    def wait_event(self, event: LazyEvent) -> None:
        self.give(event.call)

    def _go_on(self) -> None:
        if not self._busy and self._things:
            self._busy = True
            self._things.popleft()(self._ended)

    def _ended(self) -> None:
        self._busy = False
        self._device.at(0.0, self._go_on)


class LazyMode(TorchDispatchMode):
    __module__ = "torch.of_tests"  # Under a mode of the program's Prophet would wait for everything.

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._device.executing:
            return func(*args, **kwargs)
        with references.blind():
            return self._later(func, args, kwargs)

    def _later(self, func: Any, args: Any, kwargs: Any) -> Any:
        device, schema = self._device, func._schema
        taken = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if taken and not any(each.is_floating_point() for each in taken):
            return func(*args, **kwargs)  # Whole numbers are the host's.
        raw_args, raw_kwargs = (tree_map(_raw, what) for what in (args, kwargs))
        written = [
            kwargs.get(argument.name, args[place] if place < len(args) else None)
            for place, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if written:
            device.current.work(lambda: func(*raw_args, **raw_kwargs))
            return written[0] if schema.returns else None
        if not all(isinstance(each, torch.Tensor) for each in tree_flatten(func(*raw_args, **raw_kwargs))[0]):
            event = device.current.record_event()  # The host wants to see a value.
            device.run(lambda: event.passed)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        made = [_raw(each) for each in tree_flatten(result)[0]]
        memory = {each.untyped_storage()._cdata for each in taken}
        if any(each.is_meta or each.untyped_storage()._cdata in memory for each in made):
            return result  # a view
        if not all(each.is_floating_point() for each in made):
            return result
        for each in made:
            each.fill_(float("nan"))

        def compute() -> None:
            for each, fresh in zip(made, tree_flatten(func(*raw_args, **raw_kwargs))[0], strict=True):
                each.copy_(fresh)

        device.current.work(compute)
        return result


def _raw(value: Any) -> Any:
    """Return the same memory, with its own counter of versions."""
    return value.data if isinstance(value, torch.Tensor) else value


class LazyStreams(DeviceStreams):
    """DeviceStreams on a lazy device."""

    def __init__(self, device: Device) -> None:
        self.lazy = device
        self.captures = False
        super().__init__(torch.device("cpu"))

    def _make(self) -> Stream:
        return Stream(self.lazy)

    def current(self) -> Stream:
        return self.lazy.current

    def on(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return self.lazy.on(stream)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        pass

    def mark(self) -> LazyEvent:
        return self.lazy.current.record_event()

    def passed(self, event: LazyEvent | None) -> bool:
        return event is None or event.passed

    def synchronize(self, event: LazyEvent) -> None:
        self.lazy.run(lambda: event.passed)
        assert event.passed, "nobody waits for ever"

    def enter_thread(self) -> None:
        pass

    def capturing(self) -> bool:
        return self.captures


class LazyWatch:
    """Watch that tells of events one after another, some time after they have passed."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._asked: deque[tuple[list[LazyEvent], Told]] = deque()
        self._busy = False

    def when(self, events: Sequence[LazyEvent], then: Told) -> None:
        self._asked.append((list(events), then))
        self._device.at(0.0, self._look)

    def _look(self) -> None:
        if self._busy or not self._asked:
            return
        events, _ = self._asked[0]
        for event in events:
            if not event.passed:
                event.call(lambda: self._device.at(0.0, self._look))
                return
        self._busy = True
        self._device.at(0.1 * self._device.chance.random(), self._tell)

    def _tell(self) -> None:
        _, then = self._asked.popleft()
        then(None)
        self._busy = False
        self._look()


class NcclWork:
    """torch's Work of a collective on the device, which neither blocks nor calls back on the host."""

    def __init__(self, device: Device, end: LazyEvent) -> None:
        self._device, self._end = device, end

    def wait(self) -> None:
        self._device.current.wait_event(self._end)

    def get_future(self) -> Any:
        raise AssertionError("the future of a collective on a device is done at once")


class GlooWork:
    def __init__(self, device: Device) -> None:
        self._future = Future()
        device.at(device.some_time(), self._future.end)

    def get_future(self) -> Future:
        return self._future


class LazyGroup:
    """One rank's process group: floats go over NCCL, integers, which are the host's, over gloo."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._stream = Stream(device)
        self.failing: Exception | None = None

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        (tensor,) = tensors
        if self.failing is not None:
            raise self.failing
        if not tensor.is_floating_point():
            return GlooWork(self._device)
        device, data = self._device, tensor.data
        device.in_flight += 1
        device.most_in_flight = max(device.most_in_flight, device.in_flight)
        self._stream.wait_event(device.current.record_event())

        def add_up() -> None:
            device.in_flight -= 1
            data.copy_(peers(data))

        self._stream.work(add_up)
        return NcclWork(device, self._stream.record_event())

    def broadcast(self, tensors: list[torch.Tensor], _options: object) -> Any:
        return GlooWork(self._device)


class HostWait:
    """A Condition whose waiters let the device go on."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def notify_all(self) -> None:
        pass

    def wait_for(self, ready: Callable[[], bool], limit_s: float | None = None) -> bool:
        while not ready():
            if not self._device.step():
                assert limit_s is not None and limit_s <= 0, "nobody waits for ever"
                return False
        return True
