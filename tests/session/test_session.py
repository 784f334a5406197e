"""The agent's pure half: when it plans, and from what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prophet_papers.tictac import TicTac
from prophet_scheduler.core.choice import Shape
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.policies import get_policy
from prophet_scheduler.session.messages import ForwardTraced
from support.graphs import graph
from support.sessions import plan_at, session
from support.virtual import events, iteration, transfers

STEPS = {2: 0.1, 1: 0.2, 0: 0.3}
NOTHING = events([])


def some_iterations(count: int, began: float = 0.0) -> NDArray[Any]:
    return events([row for n in range(count) for row in iteration(began + n, STEPS)])


def turn(second: int, sizes: list[int], bandwidth: float, overhead_s: float = 0.0, began: float = 0.31) -> NDArray[Any]:
    """Return the events of one second: an iteration, and transfers from `began` on."""
    sent = transfers(sizes, bandwidth, overhead_s, began=second + began)
    return np.sort(np.concatenate([some_iterations(1, float(second)), sent]), order="time_s", kind="stable")


def test_it_has_a_plan_before_anything_is_known() -> None:
    assert session().plan.push.order == {}


def test_no_plan_without_a_profile() -> None:
    assert plan_at(session(), 1.0, NOTHING) is None


def test_the_first_profile_makes_a_plan_at_once() -> None:
    subject = session("p3")
    plan = plan_at(subject, 1.0, some_iterations(8))
    assert plan is not None
    assert plan.push.order == {0: 0, 1: 1, 2: 2}
    assert plan is subject.plan


def test_ids_that_rise_in_forward_order_are_ranks_as_they_are() -> None:
    assert plan_at(session(), 1.0, some_iterations(8)) is None, "which changes nothing"


def test_the_first_measured_rate_makes_a_plan_at_once_too() -> None:
    subject = session()
    assert plan_at(subject, 1.0, some_iterations(8)) is None
    second = plan_at(subject, 2.0, transfers([131072, 4000] * 60, 30e6, 0.0005, began=2.0))
    assert second is not None
    assert second.network is not None


def test_it_plans_again_only_when_the_time_has_come_and_something_changed() -> None:
    subject = session(monitor_s=5.0)
    plan_at(subject, 1.0, some_iterations(8))
    measured = transfers([131072, 4000] * 60, bandwidth=30e6, overhead_s=0.0005, began=2.0)
    assert plan_at(subject, 2.0, measured) is not None
    assert plan_at(subject, 20.0, NOTHING) is None, "nothing changed"
    slower = transfers([131072, 4000] * 60, bandwidth=10e6, overhead_s=0.0005, began=20.0)
    assert plan_at(subject, 21.0, slower) is None, "too early"
    assert plan_at(subject, 26.0, NOTHING) is not None


def test_a_worker_that_follows_has_in_flight_what_the_one_that_decides_wants() -> None:
    """The wish holds from the turn after a cut came, though the worker's own events cannot tell of that cut yet."""
    subject = session(shape=Shape(2, 1), follows=True)
    begun_with = subject.plan.push.credit
    credits: list[int | None] = []
    said = {0: None, 1: 128 * 1024, 2: 128 * 1024, 3: 1 << 20}
    for number, size in enumerate((512 * 1024, 64 * 1024, 64 * 1024, 512 * 1024)):
        for second in range(8 * number, 8 * number + 8):
            seen = turn(second, [size, 4000] * 20, 30e6, 0.0005, 0.4)
            plan = plan_at(subject, second + 1.0, seen, cut=Cut.uniform(size), credit=said[number])
            assert plan is None or plan.cut is None, "it has no say in that"
            credits.append(subject.plan.push.credit)
    assert credits == [said[number] or begun_with for number in range(4) for _ in range(8)]
    assert subject.network is not None, "which all workers are to know"
    assert subject.plan.push.order == {}, "blocks are ranked by their ids, whatever order they came in"


def test_one_that_follows_plans_for_itself_where_nothing_is_cut() -> None:
    """Gradients that the program sends itself are in no arena, and nobody says what is to be in flight."""
    subject, alone = (session(follows=follows) for follows in (True, False))
    for second in range(12):
        for one in (subject, alone):
            plan_at(one, second + 1.0, turn(second, [131072, 4000] * 20, 30e6, 0.0005, 0.4))
    assert subject.plan == alone.plan != session().plan


def test_the_first_rounds_of_new_keys_say_nothing_of_the_network() -> None:
    """Servers make room for new keys, and all workers meet at each: these rounds are slow, and later ones are not."""
    subject = session(shape=Shape(2, 1), follows=True)
    rates: list[float] = []
    for second in range(30):
        size, new = (128 * 1024, False) if second < 12 else (512 * 1024, second < 14)
        seen = turn(second, [size] * ((8 << 20) // size), 13e6 if new else 30e6)
        plan_at(subject, second + 1.0, seen, cut=Cut.uniform(size))
        if subject.network is not None:
            rates.append(subject.network.bandwidth)
    assert len(rates) > 20
    assert rates == pytest.approx([30e6] * len(rates), rel=0.02)


def test_what_a_part_of_an_iteration_tells_of_the_network_does_not_count() -> None:
    """A part may make a fast wire behind a long delay look like a slow wire without a delay."""
    subject = session()
    known = []
    for second in range(6):
        plan_at(subject, second + 1.0, turn(second, [131072, 4000] * 20, 30e6, 0.0005, 0.4))
        known.append(subject.network is not None)
    assert known == [False] * 4 + [True] * 2, "two to warm up, and two that have ended, with the next one's begin"


def test_planned_for_is_the_slowest_rate_and_the_longest_delay() -> None:
    """A worker that is far away is the slowest of all if too little is in flight for it."""
    subject = session()
    plan_at(subject, 1.0, some_iterations(8))
    measured = transfers([131072, 4000] * 60, 30e6, 0.0005, began=9.0)
    others = Network(20e6, 0.001), Network(90e6, ack_delay_s=0.04)
    plan = plan_at(subject, 9.5, measured, networks=others)
    assert plan is not None and plan.network == Network(20e6, 0.001, 0.04)


def test_a_slower_network_is_seen_though_it_came_with_another_cut() -> None:
    subject = session(shape=Shape(2, 1), follows=True)
    for second in range(24):
        size, rate = (128 * 1024, 30e6) if second < 12 else (512 * 1024, 15e6)
        seen = turn(second, [size] * ((8 << 20) // size), rate)
        plan_at(subject, second + 1.0, seen, cut=Cut.uniform(size))
    assert subject.network is not None
    assert subject.network.bandwidth == pytest.approx(15e6, rel=0.02)


def test_the_order_of_blocks_that_come_back_is_known_at_once() -> None:
    """Learning the order took iterations, and a cut on trial was judged by those alone."""
    subject = session(shape=Shape(2, 1), follows=True, learns_order=True)
    orders = []
    for second in range(18):
        seen = events(iteration(float(second), {0: 0.1, 1: 0.2, 2: 0.3}))
        size = 512 * 1024 if 8 <= second < 16 else 128 * 1024
        plan_at(subject, second + 1.0, seen, cut=Cut.uniform(size))
        orders.append(subject.plan.push.order)
    assert (orders[7], orders[8]) == ({2: 0, 1: 1, 0: 2}, {})
    assert orders[16] == orders[7]


def test_what_was_traced_is_planned_with_at_the_next_turn() -> None:
    subject = session("tictac")
    measured = transfers([131072, 4000] * 60, 30e6, 0.0005, began=8.0)
    plan_at(subject, 1.0, np.concatenate([some_iterations(8), measured]))
    assert subject.plan.push.order == {0: 0, 1: 1, 2: 2}, "layers one after another"
    transfers_of = {f"gradient{id_}": 1000 for id_ in sorted(STEPS)}
    branches = graph(transfers_of, {"x": (0.0, "gradient0"), "y": (9.0, "gradient2"), "z": (0.0, "x y gradient1")})
    subject.on(ForwardTraced({0: 0.5}, TicTac(branches)))
    plan = plan_at(subject, 2.0, NOTHING)
    assert plan is not None and plan.push.order == {2: 0, 0: 1, 1: 2}
    subject.on(ForwardTraced({}, get_policy("tictac")))
    plan = plan_at(subject, 3.0, NOTHING)
    assert plan is not None and plan.push.order == {0: 0, 1: 1, 2: 2}
