"""Threads that did not call step() but may use parameters with pending updates: they are watched, too.

Rule of this file: when to start watching a thread. references.py watches it.

torch's function modes belong to one thread, and no other thread can set them. So each Python thread gets our mode when
it starts. A thread from before gets it when it takes a task of an executor, runs a callback of asyncio's event loop, or
wakes from waiting for another thread, since it may learn of a step then. For an earlier thread pool whose queue cannot
be intercepted, all updates are made before it gets a task. Threads that Python neither starts nor wakes remain unseen:
C++ threads, earlier threads that poll a variable or wait for a lock or a SimpleQueue, and the first time that an
earlier thread wakes from a condition with an RLock.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import functools
import threading
import weakref
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from typing import Any

OWN = "prophet-"
"""Name prefix of our own threads, which never wait for updates."""

_watched: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def is_unwatched() -> bool:
    """Return True if this thread is one of ours, or was not started by Python.

    torch would keep a mode in such a thread's memory and free it when the thread ends, which takes the GIL. But the
    joining thread may hold the GIL: MXNet's engine joins its threads before each fork.
    """
    thread = threading.current_thread()
    return thread.name.startswith(OWN) or isinstance(thread, threading._DummyThread)


def watch_all(
    begins: Callable[[], None], ends: Callable[[], None], wakes: Callable[[], None], flush: Callable[[], None]
) -> None:
    """Call `begins` and `ends` in each new thread, and `wakes` in each thread that may have learned of a step.

    If an earlier thread of a pool may learn of one, the thread that gives the pool a task calls `flush`.
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
    _before(asyncio.Handle, "_run", lambda *_: wakes())
    # A wait that is already in progress will end through a method that it looks up then.
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
