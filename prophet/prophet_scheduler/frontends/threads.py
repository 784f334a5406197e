"""Threads that did not call step() but may use parameters with pending updates: they are watched, too.

Rule of this file: when to start watching a thread. torch/references.py watches it. Nothing here imports torch.

torch's function modes belong to one thread, and no other thread can set them. So each Python thread gets our mode when
it starts. A thread from before gets it when it takes a task of an executor, runs a callback of asyncio's event loop, or
wakes from waiting for another thread, since it may learn of a step then. Python's waits are patched when the
interpreter starts (`attend`): the thread that waits now may be the main one, while another makes the first module. For
an earlier thread pool whose queue cannot be intercepted, all updates are made before it gets a task.

Threads that Python neither starts nor wakes remain unseen: C++ threads, and earlier threads that poll a variable or
wait for a lock or a SimpleQueue. So may the main thread be, but most programs use their model there in the end: while
it is unseen, no update of another thread is late (torch/guards.py).
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

OWN = "prophet-"
"""Name prefix of our own threads, which never wait for updates."""

_watched: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_main_waits = False


class _Watch(NamedTuple):
    """Functions to call in a thread that begins, in one that ends, and in one that may have learned of a step."""

    begins: Callable[[], None]
    ends: Callable[[], None]
    wakes: Callable[[], None]


_watch: _Watch | None = None
"""The watch of all threads; None before `watch_all`."""


def is_unwatched() -> bool:
    """Return True if this thread is one of ours, or was not started by Python.

    torch would keep a mode in such a thread's memory and free it when the thread ends, which takes the GIL. But the
    joining thread may hold the GIL: MXNet's engine joins its threads before each fork.
    """
    thread = threading.current_thread()
    return thread.name.startswith(OWN) or isinstance(thread, threading._DummyThread)


def main_waits() -> bool:
    """Return True if the main thread waits for another one, and will be watched when it wakes."""
    return _main_waits


@functools.cache
def attend() -> None:
    """Prepare Python's threads, and its waits for threads, for `watch_all`."""
    run: Callable[..., None] = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(run)
    def attended(thread: threading.Thread) -> None:
        if thread.name.startswith(OWN):
            return run(thread)
        if _watch is not None:
            _watched.add(thread)
            _watch.begins()
        try:
            return run(thread)
        finally:
            if _watch is not None:
                _watch.ends()

    threading.Thread._bootstrap_inner = attended  # type: ignore[attr-defined]
    for kind, name in ((threading.Condition, "wait"), (threading.Thread, "join")):
        _attend_wait(kind, name)


def watch_all(
    begins: Callable[[], None], ends: Callable[[], None], wakes: Callable[[], None], flush: Callable[[], None]
) -> None:
    """Call `begins` and `ends` in each new thread, and `wakes` in each thread that may have learned of a step.

    If an earlier thread of a pool may learn of one, the thread that gives the pool a task calls `flush`.
    """
    # Imported here since they take a while, and `attend` runs in every process.
    import asyncio
    import concurrent.futures.thread
    from multiprocessing.pool import ThreadPool

    global _watch
    attend()
    _watch = _Watch(begins, ends, wakes)

    def hand_over(pool: Any) -> None:
        if not _watched.issuperset(pool._pool):
            flush()

    _before(ThreadPool, "_check_running", hand_over)
    _before(concurrent.futures.thread._WorkItem, "run", lambda *_: wakes())  # type: ignore[attr-defined]
    _before(asyncio.Handle, "_run", lambda *_: wakes())


def _before(kind: Any, name: str, first: Callable[..., None]) -> None:
    original = getattr(kind, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        first(*args)
        return original(*args, **kwargs)

    setattr(kind, name, method)


def _attend_wait(kind: Any, name: str) -> None:
    original = getattr(kind, name)

    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        global _main_waits
        before, in_main = _main_waits, threading.get_ident() == threading.main_thread().ident
        if in_main:
            _main_waits = True
        try:
            return original(*args, **kwargs)
        finally:
            if _watch is not None:
                _watch.wakes()
            if in_main:
                _main_waits = before

    setattr(kind, name, wait)
