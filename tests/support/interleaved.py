"""Ranks of one process whose threads a test lets run in turn: in any order, and each time in the same one.

Rule of this file: who runs, and when an operation ends. A rank runs until it waits or pauses, and only one runs at a
time. An operation ends between two such moments, as it may in a thread of torch's.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence

from prophet_ddp.events import EventLog
from prophet_ddp.issuer import Issuer
from support.collectives import Wire

LIMIT_S = 60.0


class _Rank:
    """One rank's thread; `moved` is the number of moves that it had seen when it began to wait, None if it does not."""

    def __init__(self, run: Callable[[], None]) -> None:
        self.may_run = threading.Semaphore(0)
        self.moved: int | None = None
        self.ended = False
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._begin, args=[run], daemon=True)
        self.paused = threading.Semaphore(0)

    def _begin(self, run: Callable[[], None]) -> None:
        self.may_run.acquire()
        try:
            run()
        except BaseException as error:
            self.error = error
        self.ended = True
        self.paused.release()


class Interleaving(Wire):
    """The wire between ranks, and the order in which they run and operations end, which `seed` chooses."""

    def __init__(self, ranks: int, seed: int) -> None:
        super().__init__(ranks, lambda _rank, _number: 0.0)
        self._chance = random.Random(seed)
        self._ends: list[Callable[[], None]] = []
        self._moves = 0
        self._ranks: list[_Rank] = []
        self.issuers = [PausingIssuer(self, rank) for rank in range(ranks)]

    def at(self, delay_s: float, action: Callable[[], None]) -> None:
        self._ends.append(action)

    def pause(self, rank: int, waits: bool = False) -> None:
        """Let another go on, in the thread of this rank. One that `waits` goes on after a move of somebody else."""
        own = self._ranks[rank]
        own.moved = self._moves if waits else None
        own.paused.release()
        own.may_run.acquire()

    def run_ranks(self, programs: Sequence[Callable[[], None]]) -> None:
        """Run all programs to their ends, and all operations. Raise the first error of one, or AssertionError if
        nothing can go on.
        """
        self._ranks = [_Rank(program) for program in programs]
        for each in self._ranks:
            each.thread.start()
        while True:
            may = [each for each in self._ranks if not each.ended and each.moved != self._moves]
            if not may and not self._ends:
                break
            number = self._chance.randrange(len(may) + len(self._ends))
            if number < len(may):
                self._let_run(may[number])
            else:
                self._ends.pop(number - len(may))()
                self._moves += 1
        for each in self._ranks:
            if each.error is not None:
                raise each.error
        assert all(each.ended for each in self._ranks), "ranks wait for each other"

    def _let_run(self, rank: _Rank) -> None:
        before = sum(len(rows) for rows in self.submitted())
        rank.may_run.release()
        assert rank.paused.acquire(timeout=LIMIT_S), "a rank waits out of the test's sight"
        if sum(len(rows) for rows in self.submitted()) != before:
            self._moves += 1


class PausingIssuer(Issuer):
    """An issuer whose waits let others run."""

    def __init__(self, wire: Interleaving, rank: int) -> None:
        super().__init__(wire.group(rank), EventLog(open=False))
        self._pause = lambda: wire.pause(rank, waits=True)
        self.new_group = lambda number: wire.group(rank, number + 1)

    def wait_activity(self, limit_s: float) -> None:
        if self.error is None:
            self._pause()
        super().wait_activity(0.0)
