"""Agenda of an event loop, which decides whether time is virtual or real."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Actions ordered by time, in seconds; actions of the same time stay in the order in which they were added."""

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
        heapq.heappush(self._entries, (time_s, self._count, action))
        self._count += 1

    def take(self) -> tuple[float, Action]:
        """Remove the next action; return its time and the action. Raises IndexError if there is none."""
        time_s, _, action = heapq.heappop(self._entries)
        return time_s, action
