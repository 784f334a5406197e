"""A decision as ranks tell it to each other."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from prophet_ddp.control import Decision
from prophet_scheduler.core.cut import Borders, Cut, learning_cut

CUTS = st.one_of(
    st.integers(1, 1 << 30).map(learning_cut),
    st.builds(Borders.at, st.lists(st.integers(0, 1 << 40), max_size=40), st.integers(1, 1 << 40)),
)


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    together = tuple(draw(st.lists(st.integers(1, 5), max_size=20)))
    order, gathers = (tuple(draw(st.permutations(range(sum(together))))) for _ in range(2))
    ways: dict[str, Any] = draw(st.sampled_from(({}, {"together": together}, {"gathers": gathers})))
    return Decision(draw(CUTS), order, at_once=draw(st.integers(1, 8)), **ways)


@given(decisions())
def test_it_comes_back_from_its_bytes(decision: Decision) -> None:
    assert Decision.decode(decision.encode()) == decision


@given(decisions())
def test_its_collectives_are_its_blocks_in_their_order(decision: Decision) -> None:
    collectives = decision.collectives
    assert tuple(place for places in collectives for place in places) == decision.order
    assert [len(places) for places in collectives] == list(decision.together or [1] * len(decision.order))


@pytest.mark.parametrize(
    ("order", "together"), [((0, 0), ()), ((1, 2), ()), ((0, 1), (1,)), ((0, 1), (3, -1)), ((0, 1), (2, 0))]
)
def test_what_is_no_decision_is_refused(order: tuple[int, ...], together: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a decision"):
        Decision(Cut.uniform(4096), order, together)


@pytest.mark.parametrize(("together", "gathers"), [((), (0,)), ((), (0, 0)), ((2,), (1, 0))])
def test_each_block_is_gathered_once_and_by_itself(together: tuple[int, ...], gathers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="is gathered"):
        Decision(Cut.uniform(4096), (0, 1), together, gathers=gathers)
