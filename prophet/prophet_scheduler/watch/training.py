"""What the threads that train say to whoever watches: that an iteration has ended, and what they wait for.

Rule of this file: notes in memory, with the time passed in; no thread of its own, no lock and no file. Each call is
made where a thread has just done much more, or is about to sleep, and costs about a microsecond. Times are seconds of
the steady clock.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

ENDS_KEPT = 4096
"""Iterations whose ends are kept until somebody takes them."""
NAMES_KEPT = 20_000
"""Gradients of which it is known how long was waited for them."""


class HasId(Protocol):
    """A block, by the id that its events have."""

    @property
    def id(self) -> int: ...


@dataclass(frozen=True)
class OpenWait:
    """A thread waits for the average of the gradient called `name`, since `since_s`; `blocks` have a part of it."""

    name: str
    since_s: float
    blocks: Sequence[HasId] = ()


class TrainingLog:
    """Of one process. The front ends write, the agent's thread reads; what several optimizers do is told apart by the
    first one's `source`, whose iterations are the job's.
    """

    def __init__(self) -> None:
        self._source: Hashable = None
        self._ends: deque[float] = deque(maxlen=ENDS_KEPT)
        self._open: dict[int, OpenWait] = {}
        self._waited_s: dict[str, float] = {}

    def iteration_ended(self, source: Hashable, now: float) -> None:
        """All gradients of an iteration have been handed over."""
        if self._source is None:
            self._source = source
        if source == self._source:
            self._ends.append(now)

    def paused(self) -> None:
        """Iterations that nobody counts come between: the next period is none."""
        self._ends.append(math.nan)

    def waiting(self, name: str, now: float, blocks: Sequence[HasId] = ()) -> None:
        """This thread waits for a gradient, or still does."""
        thread = threading.get_ident()
        before = self._open.get(thread)
        if before is None or before.name != name:
            self._close(before, now)
            self._open[thread] = OpenWait(name, now, blocks)

    def over(self, now: float) -> None:
        """It has what it waited for, if it did."""
        self._close(self._open.pop(threading.get_ident(), None), now)

    def _close(self, wait: OpenWait | None, now: float) -> None:
        if wait is not None and (wait.name in self._waited_s or len(self._waited_s) < NAMES_KEPT):
            self._waited_s[wait.name] = self._waited_s.get(wait.name, 0.0) + now - wait.since_s

    # For the thread that watches.

    def take_ends(self) -> list[float]:
        """Ends of iterations since the last call; NaN where there was a pause."""
        taken = []
        while self._ends:
            taken.append(self._ends.popleft())
        return taken

    def awaited(self) -> OpenWait | None:
        """What has been waited for longest of all that is waited for now."""
        return min(self._open.copy().values(), key=lambda wait: wait.since_s, default=None)

    def waited_s(self) -> dict[str, float]:
        """Seconds by gradient, of all waits that are over."""
        return self._waited_s.copy()


_log: TrainingLog | None = None


def switch_on() -> TrainingLog:
    """From now on the front ends of this process write; where they do already, what they write."""
    global _log
    if _log is None:
        _log = TrainingLog()
    return _log


def switch_off() -> None:
    """The front ends write nothing any more."""
    global _log
    _log = None


def iteration_ended(source: Hashable, now: float) -> None:
    """See TrainingLog; nothing where nobody watches."""
    if _log is not None:
        _log.iteration_ended(source, now)


def paused() -> None:
    """See TrainingLog; nothing where nobody watches."""
    if _log is not None:
        _log.paused()


def waiting(name: str, now: float, blocks: Sequence[HasId] = ()) -> None:
    """See TrainingLog; nothing where nobody watches."""
    if _log is not None:
        _log.waiting(name, now, blocks)


def over(now: float) -> None:
    """See TrainingLog; nothing where nobody watches."""
    if _log is not None:
        _log.over(now)
