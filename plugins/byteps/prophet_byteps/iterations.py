"""Iterations of a front end, as the agent and the observer get to know them.

Rule of this file: when an iteration begins and ends, and whether it waited for all averages.
"""

from __future__ import annotations

import time

from prophet_byteps.cutting import CutBoard
from prophet_scheduler.core.choice import IterationEnd
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.learn.barrier import BarrierWatch
from prophet_scheduler.watch import training

OPENS = 2
"""Number of rounds in which a job's first blocks use a key for the first time."""


class OptimizerIterations:
    """Iterations of optimizer `number`, noted on the board. `half`: its gradients travel in half precision."""

    def __init__(self, board: CutBoard, number: int, half: bool = False) -> None:
        self.half = half
        self._board = board
        self._number = number
        self._waits = BarrierWatch()
        self._began_s: float | None = None
        self._rounds = 0

    def begins(self, cut: Cut) -> None:
        """Note the end of the previous iteration, at the first gradient of a round. A job's first is not counted."""
        now, before_s = time.monotonic(), self._began_s
        self._began_s = now
        self._rounds += 1
        ended = None
        if before_s is not None and self._rounds > OPENS:
            ended = IterationEnd(cut, "", now - before_s, opens=self._rounds == OPENS + 1)
        self._board.iterated(self._number, ended)

    def sent(self) -> None:
        """Note that all gradients of the iteration have been handed over."""
        training.iteration_ended(self._number, time.monotonic())

    def ended(self, waited: bool) -> None:
        """Note the end of an iteration. `waited`: all its averages had arrived when the program went on."""
        self._waits.iteration(waited)
        self.tell()

    def tell(self) -> None:
        """Note on the board what was observed so far."""
        self._board.goes_on(self._number, barrier=self._waits.holds, half=self.half)

    def restart(self) -> None:
        """Forget the open iteration: the workers start anew."""
        self._began_s, self._rounds = None, 0
