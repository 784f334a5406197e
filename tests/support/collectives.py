"""Process groups that a test drives, in place of torch's, on a virtual clock: several ranks in one process.

`Wire` matches operations as gloo does, by the order in which each rank submits them, and raises where ranks submit
different ones. An operation ends on each rank at a time of its own, once all ranks have submitted it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import torch

from prophet.studies.agenda import Agenda
from prophet_ddp.issuer import JointOperation


class Future:
    """As far as an issuer asks torch's."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._done = False
        self._callbacks: list[Callable[[Future], None]] = []

    def value(self) -> None:
        if self._error is not None:
            raise self._error

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        if self._done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def end(self, error: BaseException | None = None) -> None:
        self._done, self._error = True, error
        for callback in self._callbacks:
            callback(self)


class Work:
    def __init__(self) -> None:
        self.future = Future()

    def get_future(self) -> Future:
        return self.future


@dataclass
class _Submitted:
    kind: str
    tensor: torch.Tensor
    work: Work = field(default_factory=Work)


class Group:
    """One rank's process group."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire = wire
        self._rank = rank

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return self._wire.submit(self._rank, "all-reduce", tensors[0])

    def broadcast(self, tensors: list[torch.Tensor], _options: object) -> Work:
        return self._wire.submit(self._rank, "broadcast", tensors[0])


Program = Generator["float | JointOperation", None, None]
"""What a rank does: it yields seconds to pass, or an operation to wait for."""


class Wire:
    """The network between `ranks`, and the clock. `duration_s(rank, number)`: how long the operation takes there."""

    def __init__(self, ranks: int, duration_s: Callable[[int, int], float]) -> None:
        self.now_s = 0.0
        self.groups: list[Any] = [Group(self, rank) for rank in range(ranks)]
        self.submitted: list[list[_Submitted]] = [[] for _ in range(ranks)]
        self.failing: int | None = None
        """The operation of this number ends with an error on every rank."""
        self.in_flight = [0] * ranks
        self.most_in_flight = 0
        self._duration_s = duration_s
        self._agenda = Agenda()
        self._blocked: list[tuple[JointOperation, Program]] = []

    def submit(self, rank: int, kind: str, tensor: torch.Tensor) -> Work:
        number = len(self.submitted[rank])
        mine = _Submitted(kind, tensor)
        self.submitted[rank].append(mine)
        self.in_flight[rank] += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight[rank])
        if all(len(rows) > number for rows in self.submitted):
            same = [rows[number] for rows in self.submitted]
            assert len({(each.kind, each.tensor.shape) for each in same}) == 1, "ranks submitted different operations"
            result = same[0].tensor.clone() if kind == "broadcast" else sum(each.tensor for each in same)
            for other, each in enumerate(same):
                self.at(self._duration_s(other, number), functools.partial(self._end, other, each, result, number))
        return mine.work

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """After so many seconds."""
        self._agenda.at(self.now_s + delay_s, action)

    def start(self, program: Program) -> None:
        """A rank begins."""
        self.at(0.0, lambda: self._go_on(program))

    def run(self) -> list[JointOperation]:
        """Until nothing more happens; what is still waited for then."""
        while self._agenda:
            self.now_s, action = self._agenda.take()
            action()
            free = [row for row in self._blocked if row[0].done]
            self._blocked = [row for row in self._blocked if not row[0].done]
            for _, program in free:
                self._go_on(program)
        return [operation for operation, _ in self._blocked]

    def _go_on(self, program: Program) -> None:
        for wanted in program:
            if isinstance(wanted, float):
                self.at(wanted, lambda: self._go_on(program))
                return
            if not wanted.done:
                self._blocked.append((wanted, program))
                return

    def _end(self, rank: int, each: _Submitted, result: Any, number: int) -> None:
        self.in_flight[rank] -= 1
        if number == self.failing:
            each.work.future.end(ConnectionError("Connection closed by peer"))
            return
        each.tensor.copy_(result)
        each.work.future.end()
