"""Locks in a forked child."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from prophet_scheduler.forks import free_in_forks

LIMIT_S = 30


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Condition, lambda: _Event()])
def test_a_lock_that_another_thread_holds_is_free_in_a_fork(make: Any) -> None:
    lock = free_in_forks(make())
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(LIMIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(LIMIT_S)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if lock.acquire(timeout=LIMIT_S) else 1)
    _, status = os.waitpid(pid, 0)
    assert not lock.acquire(blocking=False), "the parent's was let go"
    over.set()
    thread.join()
    assert status == 0


class _Event(threading.Event):
    """An event with its own lock in sight."""

    def __enter__(self) -> Any:
        return self._cond.__enter__()  # type: ignore[attr-defined]

    def __exit__(self, *error: Any) -> None:
        self._cond.__exit__(*error)  # type: ignore[attr-defined]

    def acquire(self, *args: Any, **kwargs: Any) -> bool:
        return bool(self._cond.acquire(*args, **kwargs))  # type: ignore[attr-defined]
