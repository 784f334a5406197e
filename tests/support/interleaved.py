"""Ranks in processes of their own that a test lets run in turn: in any order, which can be repeated.

Rule of this file: who runs, and when an operation ends. Between two waits or pauses a rank runs alone. An operation
ends on a rank while that waits or pauses, in a thread of its own there, as torch's operations do.
"""

from __future__ import annotations

import functools
import multiprocessing
import random
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer, RankGroups
from support.collectives import Future, Group, Operation, Wire, Work

LIMIT_S = 60.0


class RankWire:
    """The wire as one rank sees it, in its process. `submit` has the arguments of `Wire.submit`."""

    def __init__(self, told: Connection, rank: int) -> None:
        self._told = told
        self.rank = rank
        self._operations: list[Operation] = []
        self.issuer = PausingIssuer(self)

    def submit(self, _rank: int, connection: int, mine: Operation) -> Work:
        self._operations.append(mine)
        parts = [part.numpy() for part in mine.parts]  # Tensors would share memory with the other process.
        self._told.send((SUBMIT, (connection, mine.kind, mine.tensor.numpy(), mine.results, parts)))
        return mine.work

    def pause(self, waits: bool = False) -> None:
        """Let others go on. A rank that `waits` goes on after somebody else's move."""
        self._told.send((PAUSE, waits))
        self.listen()

    def listen(self) -> None:
        """End operations until this rank may go on."""
        while (said := self._told.recv()) is not None:
            thread = threading.Thread(target=self._end, args=said)
            thread.start()
            thread.join()
            self._told.send((DONE, None))

    def _end(self, number: int, result: Any, error: BaseException | None) -> None:
        operation = self._operations[number]
        if error is None:
            operation.tensor.copy_(torch.from_numpy(result))
        operation.work.future.end(error)


class PausingIssuer(Issuer):
    """An issuer whose waits let other ranks run."""

    def __init__(self, wire: Any) -> None:
        groups = RankGroups(Group(wire, wire.rank, 0), lambda number: Group(wire, wire.rank, number + 1))
        super().__init__(groups, EventLog(open=False))
        self._wait = functools.partial(wire.pause, waits=True)

    def wait_activity(self, limit_s: float) -> None:
        if self.error is None:
            self._wait()
        super().wait_activity(0.0)


SUBMIT, DONE, PAUSE, END, FAIL = range(5)
"""Kinds of messages from a rank."""


def _serve(told: Connection, rank: int, program: Callable[..., Any]) -> None:
    """Run the rank's program as often as asked for, with the arguments that come."""
    torch.set_num_threads(1)
    while (arguments := told.recv()) is not None:
        wire = RankWire(told, rank)
        try:
            told.send((END, program(wire, *arguments)))
        except BaseException:
            told.send((FAIL, traceback.format_exc()))
        wire.listen()


class Interleaving:
    """Processes of ranks that run `program(wire, *arguments)`, many times. Use it as a context."""

    def __init__(self, ranks: int, program: Callable[..., Any]) -> None:
        self._ranks, self._program = ranks, program
        self._processes: list[Any] = []
        self._ends: list[Connection] = []

    def __enter__(self) -> Interleaving:
        context = multiprocessing.get_context("spawn")
        for rank in range(self._ranks):
            own, other = context.Pipe()
            self._ends.append(own)
            self._processes.append(context.Process(target=_serve, args=(other, rank, self._program), daemon=True))
            self._processes[-1].start()
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._ends = [], []

    def run(self, seed: int, *arguments: Any, failing: int | None = None) -> list[Any]:
        """Return what the program does on each rank, in an order that `seed` chooses, when all operations have ended.

        Operation `failing` ends with an error on all ranks. AssertionError with the traceback of a rank that fails, or
        if all wait for each other.
        """
        try:
            return _Run(self._ends, seed, failing).results(arguments)
        except BaseException:
            self.__exit__()  # Others are in the midst of their programs.
            self.__enter__()
            raise


class _Run(Wire):
    """Single run of the ranks, as seen by the test's process."""

    def __init__(self, ends: Sequence[Connection], seed: int, failing: int | None) -> None:
        super().__init__(len(ends), lambda _rank, _number: 0.0)
        self.failing = failing
        self._ends = ends
        self._chance = random.Random(seed)
        self._due: list[Callable[[], None]] = []
        """Ends of operations, each on one rank, that may come now."""
        self._numbers = [0] * len(ends)
        self._moves = 0
        self._waits: list[int | None] = [None] * len(ends)
        """Number of moves that each rank had seen when it began to wait; None if it does not."""
        self._results: dict[int, Any] = {}

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._due.append(action)

    def results(self, arguments: Sequence[Any]) -> list[Any]:
        for rank in range(self.ranks):
            self._let_run(rank, arguments)
        while True:
            may = [rank for rank in range(self.ranks) if rank not in self._results and self._waits[rank] != self._moves]
            if not may and not self._due:
                break
            number = self._chance.randrange(len(may) + len(self._due))
            if number < len(may):
                self._let_run(may[number], None)
            else:
                self._due.pop(number - len(may))()
                self._moves += 1
        assert len(self._results) == self.ranks, f"ranks wait for each other, after {self._numbers} operations"
        for end in self._ends:
            end.send(None)
        return [self._results[rank] for rank in range(self.ranks)]

    def _let_run(self, rank: int, said: object) -> None:
        """Let the rank run until it pauses or ends."""
        kind, value = self._say(rank, said)
        assert kind != FAIL, f"rank {rank}: {value}"
        if kind == END:
            self._results[rank] = value
            self._moves += 1
        else:
            self._waits[rank] = self._moves if value else None

    def _say(self, rank: int, said: object) -> tuple[int, Any]:
        """Return the rank's answer, after all that it submits before."""
        self._ends[rank].send(said)
        while True:
            assert self._ends[rank].poll(LIMIT_S), f"rank {rank} does not answer"
            kind, value = self._ends[rank].recv()
            if kind != SUBMIT:
                return kind, value
            self._submitted(rank, *value)

    def _submitted(self, rank: int, connection: int, kind: Any, values: Any, results: Any, parts: Any) -> None:
        operation = Operation(kind, torch.from_numpy(values), results, [torch.from_numpy(part) for part in parts])
        number, self._numbers[rank] = self._numbers[rank], self._numbers[rank] + 1

        def ended(future: Future) -> None:
            error = None
            try:
                future.value()
            except Exception as what:
                error = what
            self._say(rank, (number, operation.tensor.numpy(), error))

        self.submit(rank, connection, operation).future.add_done_callback(ended)
        self._moves += 1
