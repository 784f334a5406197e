"""Prophet's threads in a training process, on any engine: the agent's, and one for the heap.

Rule of this file: when a thread makes a turn, what its turns cost, and how it ends. Its owner knows what a turn does.
Loading this file imports nothing of the project, since it runs in scripts that only import an engine.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable

from prophet_scheduler.forks import free_in_forks

HEAP_LOOK_S = 10.0
"""Seconds between two looks at the heap's growth."""


class TurningThread:
    """Thread that calls `turn` again and again, `pause_s()` seconds after the last call or at once when woken.

    An exception of `turn` goes to `failed` and ends the turns. The thread is a daemon, so a program that fails can end;
    `end` is for one that ends well. A forked process has no such thread.
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
        """Seconds of processor time used by the turns so far."""

    def start(self) -> None:
        """Begin the turns; once."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def started(self) -> bool:
        """True if `start` was called, here or in the process that this one was forked from."""
        return self._thread is not None

    @property
    def stopped(self) -> bool:
        """True if no turn begins any more."""
        return self._stopped

    def wake(self) -> None:
        """Make the next turn come at once. From any thread."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more turns. From any thread; it does not wait."""
        self._stopped = True
        self._woken.set()

    def end(self, limit_s: float) -> bool:
        """Stop, and wait up to `limit_s` seconds for a turn under way. True if none is under way any more."""
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
    """Start the heap's thread: keep freed memory for the next iteration, and give back free pages where they are many.
    Once in a process, and never an error.
    """

    def look() -> None:
        from prophet_scheduler.frontends import heap  # Imported late, so that no start waits for it.

        heap.look()

    TurningThread(look, lambda: HEAP_LOOK_S, lambda error: None, name="prophet-heap").start()
