"""The accelerator that is not there: compute of a replay, which is sleeping.

Rule of this file: time only; clock and sleep are passed in, and no framework is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BEHIND_S = 0.1
"""A host that is later than this was kept waiting, wherever that was, and so was its accelerator. To copy a gradient of
some ten megabytes on busy processors, which an accelerator would do by itself, takes less."""


class ComputeClock:
    """Work given to it ends when its sleeping is over.

    What the host spends on calling modules and on oversleeping is taken off the next sleep, since a host runs ahead of
    its accelerator; time in front of a module until its parameters are there is not, nor is what is more than
    MOST_BEHIND_S.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        factor: float = 1.0,
    ) -> None:
        self._factor = factor
        self._now = now
        self._sleep = sleep
        self._due = 0.0
        self._called = 0.0
        self._backward = 0.0

    def begin_iteration(self) -> None:
        self._due = self._now()

    def call_module(self) -> None:
        """The host is about to call a module; what runs before its forward is waiting."""
        self._called = self._now()

    def forward(self, duration_s: float) -> None:
        self._count_waiting(self._called)
        self._due += self._now() - self._called + duration_s * self._factor
        self._sleep_until_due()

    def begin_backward(self) -> None:
        self._backward = self._due

    def backward_until(self, generation_s: float) -> None:
        self._count_waiting(self._now())
        self._due = self._backward + generation_s * self._factor
        self._sleep_until_due()

    def _sleep_until_due(self) -> None:
        remaining = self._due - self._now()
        if remaining > 0:
            self._sleep(remaining)

    def _count_waiting(self, until: float) -> None:
        """What the host was kept waiting since the last work ended, but for what it may be behind."""
        waited_s = until - self._due - MOST_BEHIND_S
        if waited_s > 0:
            self._due += waited_s
            self._backward += waited_s
