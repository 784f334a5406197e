"""Locks of ours in a forked child: each is free there, whoever held it.

Rule of this file: that, and nothing about what they guard. A fork copies one thread, so a lock that another one held
would never be released in the child. What it guards may be half done there: so whatever has work under way forgets it
in a child (guards.py), and nothing there waits for an engine.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, TypeVar

Lock = TypeVar("Lock")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def free_in_forks(lock: Lock) -> Lock:
    """A lock, condition or event of `threading`, which a forked child finds as it was when it was made."""
    _locks.add(lock)
    return lock


class _Held(threading.local):
    """Locks that this thread holds while it forks."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Held()


def hold_over_fork(lock: Any) -> None:
    """Takes it before this thread forks, until it has; it is one of `free_in_forks`."""
    lock.acquire()
    _held.locks.append(lock)


def _in_the_parent() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _in_the_child() -> None:
    _held.locks.clear()
    for lock in list(_locks):
        lock._at_fork_reinit()  # As Python's own modules do with theirs.


os.register_at_fork(after_in_parent=_in_the_parent, after_in_child=_in_the_child)
