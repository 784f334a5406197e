"""Threads that did not call step(), and may use what is pending there: they are watched as that one is.

Rule of this file: the moments at which a thread begins to be watched. How it is watched is references.py's.

torch's function modes are a thread's own, and no other thread can give it one. So each thread of Python's gets ours as
it begins; an older one where it takes up a task of an executor, or where it wakes from a wait for another thread, which
is when it may learn that there was a step. A pool of threads that is older, and has a queue that cannot be stood
before, finds all updates made when it gets a task. What no thread of Python's begins or wakes by remains unseen: one of
C++'s, an older one that looks again and again at a variable, and the first time that an older one wakes from a
condition with an RLock.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import threading
import weakref
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any

OWN = "prophet-"
"""How the names of our own threads begin, which wait for nothing."""

_watched: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def is_own() -> bool:
    """Whether this thread is one of ours."""
    return threading.current_thread().name.startswith(OWN)


def watch_all(
    begins: Callable[[], None], ends: Callable[[], None], wakes: Callable[[], None], flush: Callable[[], None]
) -> None:
    """From now on each new thread calls `begins` and `ends`, and each one `wakes` where it may have learned of a step.

    `flush` is called where an older one that is in a pool may, in the thread that gives it something to do.
    """
    run: Callable[..., None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(run)
    def watched(thread: threading.Thread) -> None:
        if thread.name.startswith(OWN):
            return run(thread)
        _watched.add(thread)
        begins()
        try:
            return run(thread)
        finally:
            ends()

    def hand_over(pool: Any) -> None:
        if not _watched.issuperset(pool._pool):
            flush()

    threading.Thread._bootstrap_inner = watched  # type: ignore[attr-defined]
    _before(ThreadPool, "_check_running", hand_over)
    _before(concurrent.futures.thread._WorkItem, "run", lambda *_: wakes())  # type: ignore[attr-defined]
    # A wait that is under way ends by what it looks up at its end.
    waits = (threading.Condition, "wait"), (threading.Condition, "_acquire_restore"), (threading.Thread, "join")
    for kind, name in waits:
        _after(kind, name, wakes)


def _before(kind: Any, name: str, first: Callable[..., None]) -> None:
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        first(*args)
        return original(*args, **kwargs)

    setattr(kind, name, method)


def _after(kind: Any, name: str, then: Callable[[], None]) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        then()
        return result

    setattr(kind, name, method)
