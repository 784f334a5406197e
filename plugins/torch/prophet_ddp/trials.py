"""Cuts that turn out far worse are left after an iteration or two, without waiting for the agent's next turn.

Rule of this file: the edge around prophet/learn/trial.py, on the rank that decides: what a round took, and the way
back. All ranks go it together, by the page that control.py sends when the next round begins.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from prophet.core.cut import Cut
from prophet.forks import free_in_forks
from prophet.learn.trial import TrialRule
from prophet_ddp.control import Control, Decision
from prophet_ddp.issuer import Issuer


class CutTrial:
    """One module's. `clock` gives seconds."""

    def __init__(self, control: Control, issuer: Issuer, clock: Callable[[], float] = time.monotonic) -> None:
        self._control = control
        self._issuer = issuer
        self._clock = clock
        self._trial = TrialRule()
        self._lock = free_in_forks(threading.Lock())
        self._decision: Decision | None = None
        self._former: Decision | None = None
        self._goes_back = False
        self._began_s: float | None = None
        self._left: list[tuple[Cut, float]] = []

    def paused(self) -> None:
        """What came since the last round began was not all Prophet's."""
        self._began_s = None

    def round_begins(self) -> None:
        """Before it is known which decision it has."""
        now, began_s = self._clock(), self._began_s
        self._began_s = now
        if began_s is None:
            return
        back_s = self._issuer.last_back_s
        averages_s = (back_s if back_s is not None else now) - began_s
        if self._trial.iteration(now - began_s, averages_s) and self._decision and self._former:
            with self._lock:
                self._left.append((self._decision.cut, averages_s))
            self._goes_back = True
            self._control.want(self._former)

    def took_up(self, decision: Decision) -> None:
        """It holds from this round on."""
        before, self._decision = self._decision, decision
        self._began_s = self._clock()
        if self._goes_back:
            self._goes_back = False
            if decision == self._former:
                return  # It has proved itself.
        elif before is None or before.cut == decision.cut:
            return
        elif not self._trial.under_way:
            self._former = before
        self._trial.begins()

    def left(self) -> list[tuple[Cut, float]]:
        """Cuts that were left since the last call, each with the seconds that an iteration took at least. From any
        thread.
        """
        with self._lock:
            left, self._left = self._left, []
        return left
