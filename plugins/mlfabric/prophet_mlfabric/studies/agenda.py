"""Agenda of a loop over events: actions and their times.

Rule of this file: the order of what was put down, and no clock; whose time it is, virtual or real, is the loop's.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions in order of their times, in seconds, and those of one time in the order in which they came."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Action]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def next_s(self) -> float:
        """Time of the next action; infinity without one."""
        return self._entries[0][0] if self._entries else math.inf

    def at(self, time_s: float, action: Action) -> None:
        """Add an action."""
        heapq.heappush(self._entries, (time_s, self._count, action))
        self._count += 1

    def take(self) -> tuple[float, Action]:
        """Remove the next action. Return its time and itself. Raises IndexError without one."""
        time_s, _, action = heapq.heappop(self._entries)
        return time_s, action
