"""Sets of living objects."""

from __future__ import annotations

from prophet_scheduler.forks import LivingSet


class Item:
    """An object without an order or a value."""


def test_an_object_is_added_while_others_are_visited() -> None:
    items = [Item() for _ in range(3)]
    living: LivingSet[Item] = LivingSet()
    for item in (*items, items[0]):
        living.add(item)
    visited = []
    for item in living:
        visited.append(item)
        items.append(Item())
        living.add(items[-1])
    assert visited == items[:3]
    assert list(living) == items


def test_it_keeps_no_object_alive_and_discards_those_that_it_has() -> None:
    kept, dropped = Item(), Item()
    living: LivingSet[Item] = LivingSet()
    living.add(kept)
    living.add(dropped)
    del dropped
    assert list(living) == [kept] and kept in living
    living.discard(kept)
    living.discard(kept)
    assert not living and kept not in living
