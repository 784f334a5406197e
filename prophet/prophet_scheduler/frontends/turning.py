"""The threads that Prophet has in a training process, whatever the engine: the agent's, and one for the heap.

Rule of this file: when a thread makes a turn, what its turns cost, and how it ends. What a turn does is its owner's. It
imports nothing of the project when it is loaded, for it runs in scripts that only import an engine.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from prophet_scheduler.forks import free_in_forks

HEAP_LOOK_S = 10.0
"""Seconds between two looks at whether the heap has grown."""


class TurningThread:
    """Calls `turn` again and again, `pause_s()` seconds after the last or at once when it is woken.

    What `turn` raises is handed to `failed`, and there are no more turns. It is a daemon, so that a program that ends
    badly ends; `end` is for one that ends well. A process that is forked has no such thread.
    """

    def __init__(
        self,
        turn: Callable[[], object],
        pause_s: Callable[[], float],
        failed: Callable[[Exception], None],
        name: str = "prophet-agent",
    ) -> None:
        self._name = name
        self._turn = turn
        self._pause_s = pause_s
        self._failed = failed
        self._woken = free_in_forks(threading.Event())
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.busy_s = 0.0
        """Seconds of processor time that the turns have taken so far."""

    def start(self) -> None:
        """Turns begin; once."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def started(self) -> bool:
        """Whether `start` has been called, here or in the process that this one was forked from."""
        return self._thread is not None

    @property
    def stopped(self) -> bool:
        """Whether no turn begins any more."""
        return self._stopped

    def wake(self) -> None:
        """The next turn comes at once. From any thread."""
        self._woken.set()

    def stop(self) -> None:
        """No turn begins any more. From any thread; nothing is waited for."""
        self._stopped = True
        self._woken.set()

    def end(self, limit_s: float) -> bool:
        """Stops, and waits up to `limit_s` seconds for a turn under way. Whether none is under way any more."""
        self.stop()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            if self._stopped:
                return
            before = time.thread_time()
            try:
                self._turn()
            except Exception as error:
                self.stop()
                self._failed(error)
            finally:
                self.busy_s += time.thread_time() - before


@functools.cache
def tend_heap() -> None:
    """From the first look on, the C library's heap keeps what an iteration frees for the next one, and its free pages
    go back to the machine where they have become many. Once in a process, and never an error.
    """

    def look() -> None:
        from prophet_scheduler.frontends import heap  # No start waits for it.

        heap.look()

    TurningThread(look, lambda: HEAP_LOOK_S, lambda error: None, name="prophet-heap").start()
