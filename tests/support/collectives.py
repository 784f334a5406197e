"""Process groups that a test drives, in place of torch's, on a virtual clock: several ranks in one process.

`Wire` matches operations as gloo does, by the order in which each rank submits them over one connection. It raises if
ranks submit different ones. An operation ends on each rank at its own time, once all have submitted it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, JointOperation, RankGroups
from prophet_mlfabric.studies.agenda import Agenda
from prophet_scheduler.core.cut import Cut, blocks_of
from prophet_scheduler.frontends.torch.arena import ArenaBlock
from prophet_scheduler.frontends.torch.slot import Slot


class Future:
    """The part of torch's Future that an issuer uses."""

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
class Operation:
    """One rank's part. `tensor` gets the result; `kind` must be the same on all ranks."""

    kind: tuple[object, ...]
    tensor: torch.Tensor
    results: Callable[[Sequence[Operation]], Sequence[torch.Tensor]]
    """Function from the parts of all ranks to the result on each."""
    parts: Sequence[torch.Tensor] = ()
    """This rank's tensor for each rank, if these differ."""
    work: Work = field(default_factory=Work)


class Group:
    """One rank's process group."""

    def __init__(self, wire: Wire, rank: int, connection: int) -> None:
        self._submit = functools.partial(wire.submit, rank, connection)

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        (tensor,) = tensors
        return self._submit(Operation(("all-reduce", tensor.shape), tensor, _sums))

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        (tensor,) = tensors
        root = options.rootRank
        return self._submit(Operation(("broadcast", tensor.shape, root), tensor, functools.partial(_copies, root)))

    def _allgather_base(self, output: torch.Tensor, given: torch.Tensor) -> Work:
        return self._submit(Operation(("all-gather", output.shape, given.shape), output, _joined, [given.clone()]))

    def alltoall_base(
        self, output: torch.Tensor, given: torch.Tensor, receives: list[int], sends: list[int], _options: object
    ) -> Work:
        assert sum(receives) == len(output)
        return self._submit(Operation(("all-to-all",), output, _exchanged, given.split(sends)))


def _sums(ranks: Sequence[Operation]) -> Sequence[torch.Tensor]:
    total: Any = sum(each.tensor.clone() for each in ranks)
    return [total] * len(ranks)


def _copies(root: int, ranks: Sequence[Operation]) -> Sequence[torch.Tensor]:
    return [ranks[root].tensor.clone()] * len(ranks)


def _joined(ranks: Sequence[Operation]) -> Sequence[torch.Tensor]:
    whole = torch.cat([each.parts[0] for each in ranks])
    return [whole.view(ranks[0].tensor.shape)] * len(ranks)


def _exchanged(ranks: Sequence[Operation]) -> Sequence[torch.Tensor]:
    return [torch.cat([each.parts[rank] for each in ranks]) for rank in range(len(ranks))]


Program = Generator["float | JointOperation", None, None]
"""Program of a rank: it yields seconds to pass, or an operation to wait for."""


class Wire:
    """The network between `ranks`, and the clock. `duration_s(rank, number)`: seconds of the operation there."""

    def __init__(self, ranks: int, duration_s: Callable[[int, int], float]) -> None:
        self.now_s = 0.0
        self.ranks = ranks
        self.groups = [self.group(rank) for rank in range(ranks)]
        self._connections: dict[int, list[list[Operation]]] = {}
        self.failing: int | None = None
        """Number of the operation on the first connection that ends with an error on every rank."""
        self.in_flight = [0] * ranks
        self.most_in_flight = 0
        self._duration_s = duration_s
        self._agenda = Agenda()
        self._blocked: list[tuple[JointOperation, Program]] = []

    def group(self, rank: int, connection: int = 0) -> Any:
        """Return the rank's part of a group; several groups may have the same ranks."""
        return Group(self, rank, connection)

    def submitted(self, connection: int = 0) -> list[list[Operation]]:
        """Return all operations over that connection, by rank."""
        return self._connections.setdefault(connection, [[] for _ in range(self.ranks)])

    def submit(self, rank: int, connection: int, mine: Operation) -> Work:
        by_rank = self.submitted(connection)
        number = len(by_rank[rank])
        by_rank[rank].append(mine)
        self.in_flight[rank] += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight[rank])
        if all(len(rows) > number for rows in by_rank):
            same = [rows[number] for rows in by_rank]
            assert len({each.kind for each in same}) == 1, "ranks submitted different operations"
            fails = connection == 0 and number == self.failing
            for other, (each, result) in enumerate(zip(same, mine.results(same), strict=True)):
                end = functools.partial(self._end, other, each, result, fails)
                self.at(self._duration_s(other, number), end)
        return mine.work

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` after `delay_s`."""
        self._agenda.at(self.now_s + delay_s, action)

    def start(self, program: Program) -> None:
        """Start a rank's program."""
        self.at(0.0, lambda: self._go_on(program))

    def run(self) -> list[JointOperation]:
        """Run until nothing more happens. Return the operations that programs still wait for."""
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

    def _end(self, rank: int, each: Operation, result: torch.Tensor, fails: bool) -> None:
        self.in_flight[rank] -= 1
        if fails:
            each.work.future.end(ConnectionError("Connection closed by peer"))
            return
        each.tensor.copy_(result)
        each.work.future.end()


class PhasesRank:
    """One rank's gradients in blocks under a cut, each with its place in one memory, for rounds in two phases."""

    def __init__(self, wire: Wire, rank: int, sizes: Sequence[int], cut: Cut) -> None:
        memory = torch.rand(sum(sizes) // 4, generator=torch.Generator().manual_seed(rank))
        self.sent = memory.clone()
        self.slots = []
        for place, part in enumerate(memory.split([size // 4 for size in sizes])):
            slot = Slot(None, f"p{place}", torch.zeros(len(part)), place)
            slot.view = part
            self.slots.append(slot)
        self.pieces = blocks_of(sizes, [0] * len(sizes), cut)
        self.blocks, at = list[ArenaBlock](), 0
        for block in self.pieces:
            slots = tuple(self.slots[piece.gradient] for piece in block.pieces)
            self.blocks.append(ArenaBlock(memory[at : at + block.size_bytes // 4], slots))
            self.blocks[-1].id = block.id
            at += block.size_bytes // 4
        for slot in self.slots:
            slot.blocks = tuple(block for block in self.blocks if slot in block.slots)
        self.issuer = Issuer(RankGroups(wire.group(rank)), EventLog(open=True))
