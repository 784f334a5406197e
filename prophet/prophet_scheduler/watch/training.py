"""Notes of the training threads for the observer: ends of iterations, and waits for gradients.

Rule of this file: notes in memory, with the time passed in. No thread, no lock and no file. A call costs about a
microsecond, and its thread has just done much more or is about to sleep. Times are seconds of the steady clock.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol

ENDS_KEPT = 4096
"""Maximum number of ends of iterations kept until the observer takes them."""
NAMES_KEPT = 20_000
"""Maximum number of gradients with a recorded waiting time."""


Said = ParamSpec("Said")


class HasId(Protocol):
    """Block with the id of its events."""

    @property
    def id(self) -> int: ...


@dataclass(frozen=True)
class OpenWait:
    """Wait of a thread, since `since_s`, for the average of the gradient `name`, whose parts are in `blocks`."""

    name: str
    since_s: float
    blocks: Sequence[HasId] = ()


class TrainingLog:
    """Log of one process, written by front ends and read by the agent's thread.

    With several optimizers, only iterations of the first `source` count as the job's.
    """

    def __init__(self) -> None:
        self._source: Hashable = None
        self._ends: deque[float] = deque(maxlen=ENDS_KEPT)
        self._open: dict[int, OpenWait] = {}
        self._waited_s: dict[str, float] = {}

    def iteration_ended(self, source: Hashable, now: float) -> None:
        """Record the end of an iteration: all its gradients have been handed over."""
        if self._source is None:
            self._source = source
        if source == self._source:
            self._ends.append(now)

    def paused(self) -> None:
        """Record a pause: uncounted iterations follow, so the time up to the next end does not count."""
        self._ends.append(math.nan)

    def waiting(self, name: str, now: float, blocks: Sequence[HasId] = ()) -> None:
        """Record that this thread waits, or still waits, for a gradient."""
        thread = threading.get_ident()
        before = self._open.get(thread)
        if before is None or before.name != name:
            self._close(before, now)
            self._open[thread] = OpenWait(name, now, blocks)

    def over(self, now: float) -> None:
        """Record the end of this thread's wait, if it waited."""
        self._close(self._open.pop(threading.get_ident(), None), now)

    def _close(self, wait: OpenWait | None, now: float) -> None:
        if wait is not None and (wait.name in self._waited_s or len(self._waited_s) < NAMES_KEPT):
            self._waited_s[wait.name] = self._waited_s.get(wait.name, 0.0) + now - wait.since_s

    # For the observer's thread.

    def take_ends(self) -> list[float]:
        """Return the ends of iterations since the last call; NaN stands for a pause."""
        taken = []
        while self._ends:
            taken.append(self._ends.popleft())
        return taken

    def awaited(self) -> OpenWait | None:
        """Return the longest current wait; None if no thread waits."""
        return min(self._open.copy().values(), key=lambda wait: wait.since_s, default=None)

    def waited_s(self) -> dict[str, float]:
        """Return the total seconds of finished waits, by gradient."""
        return self._waited_s.copy()


_log: TrainingLog | None = None


def switch_on() -> TrainingLog:
    """Make the front ends of this process write a log, and return it. Keep an existing log."""
    global _log
    if _log is None:
        _log = TrainingLog()
    return _log


def switch_off() -> None:
    """Stop logging by the front ends of this process."""
    global _log
    _log = None


def _of_this_process(note: Callable[Concatenate[TrainingLog, Said], None]) -> Callable[Said, None]:
    """Return `note` as a function on the log of the process. It does nothing if there is no log."""

    @functools.wraps(note)
    def noted(*said: Said.args, **more: Said.kwargs) -> None:
        if _log is not None:
            note(_log, *said, **more)

    return noted


iteration_ended = _of_this_process(TrainingLog.iteration_ended)
paused = _of_this_process(TrainingLog.paused)
waiting = _of_this_process(TrainingLog.waiting)
over = _of_this_process(TrainingLog.over)
