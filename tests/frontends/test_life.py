"""The table of a gradient's life: which states there are, and what cannot happen."""

from __future__ import annotations

import pytest
import torch

from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.torch.arena import Arena
from prophet_scheduler.frontends.torch.life import DEFER, END, PROMISE, TABLE, UPDATE, Life, move
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Streams


def made() -> Slot:
    return Slot(None, "weight", torch.zeros(3, requires_grad=True), 0)


def reached(start: Life) -> set[Life]:
    """Return the states that events lead to from this one."""
    found, new = {start}, {start}
    while new:
        new = {after for event in TABLE for life in new if (after := event.after[life]) is not None} - found
        found |= new
    return found


@pytest.mark.parametrize("life", Life)
def test_every_state_is_reached_from_every_other(life: Life) -> None:
    assert reached(life) == set(Life)


def test_every_event_has_a_row_for_all_states_and_a_name_of_its_own() -> None:
    assert all(len(event.after) == len(Life) for event in TABLE)
    assert len({event.name for event in TABLE}) == len(TABLE)


@pytest.mark.parametrize("life", Life)
def test_what_leaves_is_at_home_or_wanted_by_nobody(life: Life) -> None:
    slot = made()
    slot.life = life
    if life.staged or life.pending:
        with pytest.raises(RuntimeError, match=f"the gradient of weight is {life.name}: it cannot promise"):
            move((slot,), PROMISE)
        assert slot.life is life
    else:
        move((slot,), PROMISE)
        assert slot.life is Life.PROMISED


def test_an_update_is_no_update_before_its_round_ends() -> None:
    slot = made()
    move((slot,), PROMISE)
    with pytest.raises(RuntimeError, match="cannot defer"):
        move((slot,), DEFER)
    for event in (END, DEFER, UPDATE):
        assert slot.life is not Life.LOCAL
        move((slot,), event)
    assert slot.life is Life.LOCAL


class Unsent(Arena):
    def _send(self, block: object) -> object:
        return block


def test_an_arena_finds_a_state_that_its_blocks_contradict() -> None:
    params = [torch.zeros(8, requires_grad=True) for _ in range(2)]
    arena = Unsent(
        [Slot(None, str(place), param, place) for place, param in enumerate(params)], True, lambda _: Streams()
    )
    arena.recut(Cut.uniform(4096))
    arena.stage(arena.slots[0])
    arena.validate()
    arena.slots[1].life = Life.PROMISED
    with pytest.raises(AssertionError):
        arena.validate()
