"""Locks of ours in a forked child: each is free there, whoever held it.

Rule of this file: that, and nothing about what they guard. A fork copies one thread, so a lock that another one held
would never be released in the child. What it guards may be half done there: so whatever has work under way forgets it
in a child (guards.py), and nothing there waits for an engine.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeVar

Lock = TypeVar("Lock")

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def free_in_forks(lock: Lock) -> Lock:
    """A lock, condition or event of `threading`, which a forked child finds as it was when it was made."""
    _locks.add(lock)
    return lock


def _in_the_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # As Python's own modules do with theirs.


os.register_at_fork(after_in_child=_in_the_child)
