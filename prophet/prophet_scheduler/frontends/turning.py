"""Prophet's threads in a training process, on any engine: the agent's, and one for the heap.

Rule of this file: when a thread takes a turn, what its turns cost, and how it ends. Its owner decides what a turn does.
Loading this file imports only forks.py of the project, since it runs in scripts that merely import an engine.
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
    """Thread that calls `turn` repeatedly, `pause_s()` seconds after the last call or at once when woken.

    An exception from `turn` is passed to `failed` and ends the turns. The thread is a daemon, so a failing program can
    exit; call `end` in a program that succeeds. A forked process has no such thread.
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
        self.stopped = False
        """True if no further turn will begin."""
        self._thread: threading.Thread | None = None
        self.busy_s = 0.0
        """Seconds of processor time used by the turns so far."""

    def start(self) -> None:
        """Start the turns. Call this only once."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    @property
    def started(self) -> bool:
        """True if `start` was called, here or in the process from which this one was forked."""
        return self._thread is not None

    def wake(self) -> None:
        """Start the next turn at once. Thread-safe."""
        self._woken.set()

    def stop(self) -> None:
        """Begin no more turns, without waiting for the present one. Thread-safe."""
        self.stopped = True
        self._woken.set()

    def end(self, limit_s: float) -> bool:
        """Stop, and wait up to `limit_s` seconds for the present turn. Return True if the thread has ended."""
        self.stop()
        if self._thread is None:
            return True
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            if self.stopped:
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
    """Start the heap's thread, once per process: keep freed memory for the next iteration, and give back excess free
    pages. Errors are ignored.
    """

    def look() -> None:
        from prophet_scheduler.frontends import heap  # Imported late, so that it delays no start.

        heap.look()

    TurningThread(look, lambda: HEAP_LOOK_S, lambda error: None, name="prophet-heap").start()
