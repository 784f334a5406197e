"""Threads that did not call step() but may use its pending updates: they are watched like the one that did.

Rule of this file: when a thread begins to be watched. references.py watches it.

torch's function modes belong to one thread, and no other thread can set them. So each Python thread gets ours as it
begins. An older one gets it where it takes a task of an executor or wakes from a wait for another thread, since it may
learn of a step then. An older pool of threads whose queue cannot be intercepted finds all updates made when it gets a
task. Threads that Python neither begins nor wakes remain unseen: C++ threads, an older thread that polls a variable,
and the first time that an older one wakes from a condition with an RLock.
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
"""Prefix of the names of our own threads, which wait for no update."""

_watched: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def is_unwatched() -> bool:
    """True if this thread is one of ours, or Python has not begun it.

    torch would keep a mode in such a thread's memory and free it at its end, which takes Python's lock. Whoever
    joins the thread may have the lock: MXNet's engine joins its own before each fork.
    """
    thread = threading.current_thread()
    return thread.name.startswith(OWN) or isinstance(thread, threading._DummyThread)


def watch_all(
    begins: Callable[[], None], ends: Callable[[], None], wakes: Callable[[], None], flush: Callable[[], None]
) -> None:
    """Call `begins` and `ends` in each new thread, and `wakes` in each that may have learned of a step.

    Where an older thread of a pool may have, the thread that gives it a task calls `flush`.
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
    # A wait already under way ends through a method that it looks up at its end.
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
