"""Sets of living objects that several threads use at once.

Rule of this file: iteration. A WeakSet raises RuntimeError if another thread adds to it meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class LivingSet(Generic[Item]):
    """Set of objects, by identity, that keeps none alive. Threads may add and discard while others iterate."""

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
