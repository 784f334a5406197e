"""The order of what happens."""

from __future__ import annotations

import math
from functools import partial

import pytest

from prophet_mlfabric.studies.agenda import Agenda


def test_actions_come_in_order_of_time_and_those_of_one_time_as_they_were_put_down() -> None:
    agenda, done = Agenda(), list[str]()
    assert not agenda and agenda.next_s == math.inf
    for time_s, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        agenda.at(time_s, partial(done.append, name))
    assert len(agenda) == 4 and agenda.next_s == 1.0
    times = []
    while agenda:
        time_s, action = agenda.take()
        times.append(time_s)
        action()
    assert (times, done) == ([1.0, 1.0, 2.0, 2.0], ["a", "b", "c", "d"])
    with pytest.raises(IndexError):
        agenda.take()
