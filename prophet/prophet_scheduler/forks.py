"""Prophet's locks in forked children, where each lock is free even if a thread held it during the fork, and sets of
living objects that several threads use at once.

Rule of this file: nothing about what locks guard and sets hold. A fork copies a single thread, so a lock held by
another thread would never be released in the child. The data that it guards may be inconsistent there. So code with
work in progress drops that work in a child (guards.py), and nothing in a child waits for an engine.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

Lock = TypeVar("Lock")
Item = TypeVar("Item")


class LivingSet(Generic[Item]):
    """Set of objects, by identity, that keeps none alive. Threads may add and discard while others iterate; a WeakSet
    raises RuntimeError then.
    """

    def __init__(self) -> None:
        self._items: weakref.WeakValueDictionary[int, Item] = weakref.WeakValueDictionary()

    def add(self, item: Item) -> None:
        """Add an object; once is enough."""
        self._items[id(item)] = item

    def discard(self, item: Item) -> None:
        """Remove an object, if it is in the set."""
        self._items.pop(id(item), None)

    def __contains__(self, item: object) -> bool:
        return self._items.get(id(item)) is item

    def __iter__(self) -> Iterator[Item]:
        """Iterate over the objects that are in the set now, in the order of their addition."""
        return iter([item for reference in self._items.valuerefs() if (item := reference()) is not None])

    def __bool__(self) -> bool:
        return bool(self._items)


_locks: LivingSet[Any] = LivingSet()


def free_in_forks(lock: Lock) -> Lock:
    """Return `lock`, a lock, condition or event of `threading`, which a forked child will find in its initial state."""
    _locks.add(lock)
    return lock


class _Held(threading.local):
    """Locks that this thread holds while it forks."""

    def __init__(self) -> None:
        self.locks: list[Any] = []


_held = _Held()


def hold_over_fork(lock: Any) -> None:
    """Acquire `lock`, one of `free_in_forks`, before this thread forks; it is released after the fork."""
    lock.acquire()
    _held.locks.append(lock)


def _in_the_parent() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _in_the_child() -> None:
    _held.locks.clear()
    for lock in _locks:
        lock._at_fork_reinit()  # as Python's own modules do with their locks


os.register_at_fork(after_in_parent=_in_the_parent, after_in_child=_in_the_child)
