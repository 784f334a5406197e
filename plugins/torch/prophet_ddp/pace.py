"""Progress of a module's rounds, and the times of its iterations.

Rule of this file: counting. rounds.py decides what happens, and when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from prophet_scheduler.core.choice import IterationEnd
from prophet_scheduler.core.cut import Cut

WARM_UP = 2
"""Number of a module's first rounds whose times do not count."""
KEPT_ITERATIONS = 1024
"""Number of newest iterations whose times are kept. On a busy machine the agent may fetch none for a while, and an arm
whose times are lost is measured again."""


class ModulePace:
    """Progress of one module. An iteration lasts from one round's start to the next one's. Times are in seconds."""

    def __init__(self) -> None:
        self.ended = 0
        """Number of finished rounds."""
        self.open = False
        self.closed = False
        """True once torch's reducer would have waited for the last round's averages, until the next round starts."""
        self.staged = 0
        """Number of gradients of the open round that have been staged."""
        self.on_round: Callable[[], None] | None = None
        """Function to call when a round starts, while the deciding rank's agent looks for something better; or None."""
        self._iterations: deque[IterationEnd] = deque(maxlen=KEPT_ITERATIONS)
        self._began_s: float | None = None
        self._seen = 0

    @property
    def newest(self) -> int:
        """Number of the newest round, counted from 1."""
        return self.ended + self.open

    def new_iteration(self) -> bool:
        """Return True if a round has ended since the last call."""
        before, self._seen = self._seen, self.ended
        return self._seen != before

    def began(self, now: float) -> float | None:
        """Record that a round starts. Return the duration of the iteration before it; None for the first."""
        before_s, self._began_s = self._began_s, now
        self.closed = False
        return now - before_s if before_s is not None else None

    def end(self, now: float) -> float:
        """End the open round. Return its duration."""
        assert self._began_s is not None
        self.ended += 1
        self.open, self.staged = False, 0
        return now - self._began_s

    def pause(self) -> None:
        """Leave out the iteration from the last round's start to the next one's."""
        self._began_s = None

    def iterated(self, cut: Cut | None, way: str, took_s: float) -> None:
        """Record the duration of an iteration under this cut; None before the first one."""
        if cut is not None and self.ended > WARM_UP:
            self._iterations.append(IterationEnd(cut, way, took_s))
        on_round = self.on_round  # Read once: another thread may clear it.
        if on_round is not None:
            on_round()

    def take_iterations(self) -> list[IterationEnd]:
        """Return the iterations that have ended since the last call. Thread-safe."""
        return [self._iterations.popleft() for _ in range(len(self._iterations))]
