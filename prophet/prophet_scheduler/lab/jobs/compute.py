"""A stand-in for the accelerator: a replay computes by sleeping.

Rule of this file: time only, no framework; clock and sleep are passed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BEHIND_S = 0.1
"""Host delay above which the host, and so the accelerator, must have waited for something. Copying a gradient of some
ten megabytes on busy processors takes less; a real accelerator would not leave that copy to the host."""


class ComputeClock:
    """Clock of an accelerator whose work is sleeping.

    Time that the host spends calling modules or oversleeping shortens the next sleep, since a host runs ahead of its
    accelerator. Time that a module waits for its parameters does not, nor does host time beyond MOST_BEHIND_S.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now = now
        self._sleep = sleep
        self._due = 0.0
        self._called = 0.0
        self._backward = 0.0

    def begin_iteration(self) -> None:
        self._due = self._now()

    def call_module(self) -> None:
        """Record that the host calls a module; the time from here to its forward is waiting."""
        self._called = self._now()

    def forward(self, duration_s: float) -> None:
        self._count_waiting(self._called)
        self._due += self._now() - self._called + duration_s
        self._sleep_until_due()

    def begin_backward(self) -> None:
        self._backward = self._due

    def backward_until(self, generation_s: float) -> None:
        self._count_waiting(self._now())
        self._due = self._backward + generation_s
        self._sleep_until_due()

    def _sleep_until_due(self) -> None:
        remaining = self._due - self._now()
        if remaining > 0:
            self._sleep(remaining)

    def _count_waiting(self, until: float) -> None:
        """Move the schedule back by the host's delay since the last work ended, beyond the allowed MOST_BEHIND_S."""
        waited_s = until - self._due - MOST_BEHIND_S
        if waited_s > 0:
            self._due += waited_s
            self._backward += waited_s
