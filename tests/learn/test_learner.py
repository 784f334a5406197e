"""The agent's pure half: when it plans, and from what."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prophet.core.choice import Shape
from prophet.core.cut import Cut
from prophet.learn.learner import Learner
from prophet.policies import get_policy
from support.virtual import events, iteration, transfers

STEPS = {2: 0.1, 1: 0.2, 0: 0.3}
NOTHING = events([])


def learner(policy: str = "prophet", monitor_s: float = 5.0) -> Learner:
    return Learner(get_policy(policy), monitor_s)


def some_iterations(count: int, began: float = 0.0) -> NDArray[Any]:
    return events([row for n in range(count) for row in iteration(began + n, STEPS)])


def test_it_has_a_plan_before_anything_is_known() -> None:
    assert learner().plan.push.order == {}


def test_no_plan_without_a_profile() -> None:
    assert learner().turn(1.0, NOTHING, None) is None


def test_the_first_profile_makes_a_plan_at_once() -> None:
    subject = learner("p3")
    plan = subject.turn(1.0, some_iterations(8), None)
    assert plan is not None
    assert plan.push.order == {0: 0, 1: 1, 2: 2}
    assert plan is subject.plan


def test_ids_that_rise_in_forward_order_are_ranks_as_they_are() -> None:
    assert learner().turn(1.0, some_iterations(8), None) is None, "which changes nothing"


def test_the_first_measured_rate_makes_a_plan_at_once_too() -> None:
    subject = learner()
    assert subject.turn(1.0, some_iterations(8), None) is None
    second = subject.turn(2.0, transfers([131072, 4000] * 60, bandwidth=30e6, overhead_s=0.0005), None)
    assert second is not None
    assert second.network is not None


def test_it_plans_again_only_when_the_time_has_come_and_something_changed() -> None:
    subject = learner(monitor_s=5.0)
    subject.turn(1.0, some_iterations(8), None)
    measured = transfers([131072, 4000] * 60, bandwidth=30e6, overhead_s=0.0005)
    assert subject.turn(2.0, measured, None) is not None
    assert subject.turn(20.0, NOTHING, None) is None, "nothing changed"
    slower = transfers([131072, 4000] * 60, bandwidth=10e6, overhead_s=0.0005, began=20.0)
    assert subject.turn(21.0, slower, None) is None, "too early"
    assert subject.turn(26.0, NOTHING, None) is not None


def test_a_worker_that_does_not_decide_plans_for_every_cut_that_another_has_decided_on() -> None:
    subject = Learner(get_policy("prophet"), 5.0, arena=False, shape=Shape(2, 1), adapts=False)
    credits = []
    for number, size in enumerate((512 * 1024, 128 * 1024, 512 * 1024)):
        cut = Cut.uniform(size)
        for second in range(12):
            now = 12.0 * number + second
            sent = transfers([size, 4000] * 20, 30e6, 0.0005, began=now + 0.4)
            turn = np.concatenate([some_iterations(1, now), sent])
            turn.sort(order="time_s", kind="stable")
            plan = subject.turn(now + 1.0, turn, None, cut=cut)
            if plan is not None:
                assert plan.cut is None, "it has no say in that"
                credits.append((number, plan.push.credit))
        assert subject._choosing is not None and subject._choosing.may_ask(warm=False), "this cut has been measured"
    assert [number for number, _ in credits][-3:] == [0, 1, 2]
    (_, large), (_, small), (_, again) = credits[-3:]
    assert large is not None and small is not None and small < large == again


def test_what_iterations_took_on_another_network_does_not_count_any_more() -> None:
    subject = learner()
    subject.profiler.observe(some_iterations(20))
    subject._changed_s = 20.0
    slow = events([row for n in range(8) for row in iteration(20.0 + 2 * n, STEPS)])
    subject.profiler.observe(slow[: 3 * 5])
    assert subject._periods_s().tolist() == [2.0] * 3, "too few to say anything, but of now"
    subject.profiler.observe(slow[3 * 5 :])
    assert subject._periods_s().tolist() == [2.0] * 6
    assert subject._changed_s is None
    assert subject._periods_s().tolist() == [2.0] * 6, "for good"


def test_where_iterations_take_as_long_as_before_all_of_them_count() -> None:
    subject = learner()
    subject.profiler.observe(some_iterations(20))
    before = len(subject._periods_s())
    subject._changed_s = 20.0
    subject.profiler.observe(some_iterations(8, began=20.0))
    assert len(subject._periods_s()) == before + 8
    assert subject._changed_s is None
