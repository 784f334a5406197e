"""The scheduled queue: its invariants as a hypothesis state machine, and each knob by hand."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline, Plan, QueuePlan
from support.lanes import ScheduledQueue, TwoLaneQueue

PUSH, PULL = QueueKind.PUSH, QueueKind.PULL
WATCHDOG_S = 1.0
GRADIENTS = 6
CREDITS = st.none() | st.integers(1, 40)
PLACES = st.none() | st.integers(1, 8)
MODES = st.sampled_from(["none", "arrival", "ranked"])


def ranked(credit: int | None = None, **plan: object) -> Plan:
    half = QueuePlan(order={g: g for g in range(GRADIENTS)}, credit=credit)
    return Plan(push=half, pull=half, **plan)  # type: ignore[arg-type]


class QueueMachine(RuleBasedStateMachine):
    """A model of the queue beside the queue: plain lists, no heap."""

    @initialize(credit=CREDITS, mode=MODES, places=PLACES)
    def start(self, credit: int | None, mode: str, places: int | None) -> None:
        self.queue = ScheduledQueue(QueueKind.PUSH, WATCHDOG_S, places)
        self.places = places
        self.now = 0.0
        self.next_id = 0
        self.pending: dict[int, tuple[int, int]] = {}  # id -> (gradient, bytes)
        self.flying: dict[int, int] = {}
        self.left: list[int] = []
        self.use_plan(credit, mode)

    def use_plan(self, credit: int | None, mode: str) -> None:
        self.mode = mode
        self.credit = credit if mode != "none" else None
        if mode == "none":
            self.queue.set_plan(None)
        elif mode == "arrival":
            self.queue.set_plan(Plan(push=QueuePlan(credit=credit)))
        else:
            self.queue.set_plan(ranked(credit))
        self.held_since: float | None = None

    def first(self) -> int:
        if self.mode == "ranked":
            return min(self.pending, key=lambda task: (self.pending[task][0], task))
        return min(self.pending)

    @rule(gradient=st.integers(0, GRADIENTS - 1), size=st.integers(0, 30))
    def add(self, gradient: int, size: int) -> None:
        assert self.queue.add(self.next_id, gradient, size, self.now)
        self.pending[self.next_id] = (gradient, size)
        self.next_id += 1

    @precondition(lambda self: self.pending or self.flying)
    @rule(data=st.data())
    def add_again_is_refused(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted([*self.pending, *self.flying])))
        assert not self.queue.add(known, 0, 1, self.now)

    @rule(later=st.sampled_from([0.0, 0.25, 1.5]))
    def get(self, later: float) -> None:
        self.now += later
        before = self.queue.unanswered_releases
        task, retry_at = self.queue.get(self.now)
        if not self.pending:
            assert (task, retry_at) == (None, math.inf)
            return
        first = self.first()
        size = self.pending[first][1]
        flying = sum(self.flying.values())
        fits = self.credit is None or not self.flying or flying + size <= self.credit
        overdue = self.held_since is not None and self.now - self.held_since >= WATCHDOG_S
        releases = self.queue.unanswered_releases
        full = False
        if self.places is not None:
            urgency = 1 + (self.pending[first][0] if self.mode == "ranked" else 0)
            fits = fits and len(self.flying) < self.places - min(urgency, self.places // 2)
            full = len(self.flying) >= self.most_ever(self.places)
        if fits or (overdue and not full):
            assert task == first, "the most urgent ready task that fits goes first"
            assert fits or self.flying, "without deadlines only what is in flight holds anything"
            assert releases - before == (not fits), "and what goes past it is counted so"
            self.left.append(task)
            self.flying[task] = size
            del self.pending[task]
            self.held_since = None
        else:
            assert task is None
            if self.held_since is None:
                self.held_since = self.now
            assert retry_at == math.inf if full else self.now < retry_at <= self.held_since + WATCHDOG_S

    @staticmethod
    def most_ever(places: int) -> int:
        return places + places // 2

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.flying)))
        assert self.queue.finish(task, self.now)
        assert not self.queue.finish(task, self.now), "a task finishes once"
        del self.flying[task]
        self.held_since = None

    @rule()
    def clear(self) -> None:
        self.queue.clear()
        assert not any(self.queue.finish(task, self.now) for task in self.flying)
        self.pending.clear()
        self.flying.clear()
        self.held_since = None

    @rule(credit=CREDITS, mode=MODES)
    def swap_plan(self, credit: int | None, mode: str) -> None:
        self.use_plan(credit, mode)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.pending == len(self.pending)
        assert self.queue.in_flight == len(self.flying)
        assert self.queue.in_flight_bytes == sum(self.flying.values())
        assert self.queue.unanswered_releases == self.queue.watchdog_releases
        assert len(set(self.left)) == len(self.left), "every task leaves exactly once"
        assert self.places is None or len(self.flying) <= self.most_ever(self.places)

    def teardown(self) -> None:
        """Progress: whatever is there drains, and nothing stays in flight."""
        while self.pending or self.flying:
            for task in self.flying:
                assert self.queue.finish(task, self.now)
            self.flying.clear()
            started, _ = self.queue.get(self.now)
            if self.pending:
                assert started is not None, "with nothing in flight a ready task goes"
                self.flying[started] = self.pending.pop(started)[1]
        assert self.queue.in_flight_bytes == 0


TestQueueMachine = QueueMachine.TestCase


def filled(plan: Plan | None, *gradients: int, size: int = 10, **queue: Any) -> ScheduledQueue:
    """Return a queue to which a task of each of these gradients came, one after another, numbered from 0."""
    made = ScheduledQueue(**queue)
    made.set_plan(plan)
    for task, gradient in enumerate(gradients):
        made.add(task, gradient, size, 0.0)
    return made


def test_a_group_waits_for_no_task_without_bytes_nor_holds_one() -> None:
    for order in ((0, 1, 2), (2, 0, 1), (0, 2, 1)):
        queue = ScheduledQueue()
        sizes = {0: 10, 1: 10, 2: 0}
        queue.set_plan(Plan(push=QueuePlan(groups=dict.fromkeys(sizes, 0)), size_bytes=sizes))
        for gradient in order:
            queue.add(gradient, gradient, sizes[gradient], 0.0)
        assert sorted(drain(queue)) == [0, 1, 2], "none waits for the watchdog"


def test_what_never_came_or_has_ended_cannot_finish() -> None:
    queue = TwoLaneQueue()
    largest = 2**64 - 1
    assert queue.add(PUSH, largest, 2**32 - 1, 2**32 - 1, 0.0)
    assert not queue.add(PUSH, largest, 0, 0, 0.0), "an id twice"
    assert not queue.finish(PUSH, largest, 0.0), "it has not started"
    assert not queue.finish(PULL, largest, 0.0) and not queue.finish(PUSH, 0, 0.0), "nor has what never came"
    assert queue.get(PUSH, 0.0)[0] == largest
    assert not queue.add(PUSH, largest, 0, 0, 0.0), "an id in flight"
    assert queue.finish(PUSH, largest, 0.0) and not queue.finish(PUSH, largest, 0.0)
    for impossible in ((largest + 1, 0, 0), (-1, 0, 0), (0, 2**32, 0), (0, 0, 2**32), (0, 0, -1)):
        with pytest.raises(TypeError):
            queue.add(PUSH, *impossible, 0.0)
    assert queue.empty


@pytest.mark.parametrize("watchdog_s, places", [(math.nan, None), (-1.0, None), (1.0, 0)])
def test_a_queue_that_would_let_nothing_go_is_not_made(watchdog_s: float, places: int | None) -> None:
    with pytest.raises(ValueError, match="lets nothing go"):
        TwoLaneQueue(watchdog_s, places)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(network=Network(1.0), deadline_slack_s=math.nan),
        Plan(generation_s={0: math.inf}),
        Plan(push=QueuePlan(deadlines=(Deadline(math.nan, 0),))),
    ],
)
def test_a_plan_of_times_that_are_no_numbers_is_refused(plan: Plan) -> None:
    queue = TwoLaneQueue()
    with pytest.raises(ValueError, match="that is no number"):
        queue.set_plan(plan)


def drain(queue: ScheduledQueue, now: float = 0.0) -> list[int]:
    order = []
    while (task := queue.get(now)[0]) is not None:
        order.append(task)
        queue.finish(task, now)
    return order


def test_unknown_gradient_ranks_by_its_id_and_a_broadcast_goes_first() -> None:
    assert drain(filled(Plan(push=QueuePlan(order={})), 3, 1, 0x80000007)) == [2, 1, 0]


def test_requests_go_first_while_the_wire_is_busy() -> None:
    queue = TwoLaneQueue()
    queue.set_plan(ranked(credit=20, network=Network(100_000.0)))  # 0.1 ms each
    for task in range(7):
        queue.add(PUSH, task, 3, 10, 0.0)
    assert [queue.get(PUSH, 0.0)[0] for _ in range(3)] == [0, 1, None]
    queue.finish(PUSH, 0, 1e-4)
    queue.add(PULL, 0, 3, 10, 1e-4)
    task_id, retry_at = queue.get(PUSH, 1e-4)
    assert task_id is None and retry_at == pytest.approx(2e-4), "until the other is through"
    assert [queue.get(PULL, 1e-4)[0] for _ in range(2)] == [0, None]
    assert queue.get(PUSH, 1e-4)[0] == 2, "the requests have left"
    for task in (1, 2):
        queue.finish(PUSH, task, 4e-4)
        queue.add(PULL, task, 3, 10, 4e-4)
    assert queue.get(PUSH, 4e-4)[0] == 3, "an idle wire, and more to come"
    queue.set_plan(ranked(credit=20, network=Network(1_000.0)))  # 10 ms each
    assert [queue.get(PULL, 4e-4)[0] for _ in range(2)] == [1, None], "a credit of two"
    assert [queue.get(PUSH, 4e-4)[0] for _ in range(2)] == [4, None]
    queue.finish(PUSH, 3, 1e-3)
    queue.add(PULL, 3, 3, 10, 1e-3)
    task_id, retry_at = queue.get(PUSH, 1e-3)
    assert task_id is None and retry_at == pytest.approx(2e-3), "at most a millisecond"
    assert queue.get(PUSH, 2e-3)[0] == 5, "however long the requests take"


def test_a_look_says_what_would_start_and_starts_nothing() -> None:
    queue = filled(ranked(credit=1), 1, 0, watchdog_s=WATCHDOG_S)
    assert [queue.look(0.0)[0], queue.look(0.0)[0], queue.get(0.0)[0]] == [1, 1, 1]
    assert queue.look(0.5) == (None, 0.5 + WATCHDOG_S), "the watchdog's time begins, as with a get"
    assert queue.look(1.5)[0] == 0
    assert (queue.watchdog_releases, queue.in_flight) == (0, 1)
    assert queue.get(1.5)[0] == 0
    assert queue.watchdog_releases == 1


def test_forgetting_lets_pushes_go_that_waited_for_requests() -> None:
    queue = TwoLaneQueue()
    queue.set_plan(ranked(network=Network(1_000.0)))
    queue.add(PUSH, 0, 0, 10, 0.0)
    assert queue.get(PUSH, 0.0)[0] == 0
    queue.add(PULL, 0, 0, 10, 0.0)
    queue.add(PUSH, 1, 0, 10, 0.0)
    assert queue.get(PUSH, 0.0)[0] is None
    assert not queue.empty
    queue.clear()
    assert queue.empty
    queue.add(PUSH, 1, 0, 10, 0.0)
    assert queue.get(PUSH, 0.0)[0] == 1


def test_a_stuck_pull_never_starves_a_more_urgent_one() -> None:
    queue = filled(ranked(credit=100), 4, size=100, kind=PULL)
    assert queue.get(0.0)[0] == 0, "held by a key that another worker has yet to push"
    queue.add(1, 5, 100, 0.0)
    assert queue.get(0.0)[0] is None, "less urgent: the credit holds it"
    queue.add(2, 1, 100, 0.0)
    assert queue.get(0.0)[0] == 2, "more urgent: goes at once"


@given(
    places=st.integers(2, 12),
    steps=st.lists(st.tuples(st.sampled_from(["come", "answer"]), st.integers(0, 1000)), max_size=80),
)
def test_what_is_stuck_never_takes_the_place_of_something_more_urgent(
    places: int, steps: list[tuple[str, int]]
) -> None:
    """For each of the most urgent ranks: where it has no place, one at least as urgent is in flight."""
    queue = ScheduledQueue(QueueKind.PULL, WATCHDOG_S, most_in_flight=places)
    queue.set_plan(Plan(pull=QueuePlan(order={})))
    ranks: dict[int, int] = {}
    flying: list[int] = []
    waiting: set[int] = set()
    for number, (what, choice) in enumerate(steps):
        if what == "come":
            ranks[number] = choice % (places // 2 + 3)
            queue.add(number, ranks[number], 10, 0.0)
            waiting.add(number)
        elif flying:
            queue.finish(flying.pop(choice % len(flying)), 0.0)
        while (task := queue.get(0.0)[0]) is not None:
            flying.append(task)
            waiting.remove(task)
        assert len(flying) < places, "one is left for what somebody waits for right now"
        if waiting and flying:
            held = min(ranks[task] for task in waiting)
            assert held >= places // 2 - 1 or min(ranks[task] for task in flying) <= held
        assert not waiting or flying, "something is always on its way"


def test_what_somebody_waits_for_has_the_last_place() -> None:
    queue = filled(ranked(), 5, 5, 5, 0, 0, 0x80000007, kind=PULL, most_in_flight=4)
    assert [queue.get(0.0)[0] for _ in range(3)] == [5, 3, 4], "the most urgent first"
    assert queue.get(0.0)[0] is None
    queue.add(6, 0x80000008, 10, 0.0)
    assert queue.get(0.0)[0] == 6
    queue.add(7, 0x80000009, 10, 0.0)
    assert queue.get(0.0)[0] is None


def test_the_watchdog_lets_go_beyond_the_places_but_not_without_end() -> None:
    queue = filled(None, *[0] * 20, watchdog_s=WATCHDOG_S, most_in_flight=4)
    now, started = 0.0, 0
    while now < math.inf:
        got, retry_at = queue.get(now)
        started += got is not None
        if got is None:
            now = retry_at
    assert started == 4 + 2
    assert queue.watchdog_releases == 3, "arrival order leaves one of the four to what is more urgent"
    queue.finish(0, 100.0)
    assert queue.get(100.0) == (None, 100.0 + WATCHDOG_S)


def deadline_plan(slack_s: float = 0.0) -> Plan:
    """Gradients 1 (at 0 s) and 0 (at 1 s); 10 bytes a second."""
    half = QueuePlan(order={0: 0, 1: 1}, deadlines=(Deadline(1.0, 0),))
    return Plan(
        push=half,
        generation_s={0: 1.0, 1: 0.0},
        size_bytes={0: 1, 1: 12},
        network=Network(10.0),
        deadline_slack_s=slack_s,
    )


def test_a_transfer_does_not_run_past_the_next_more_urgent_gradient() -> None:
    queue = ScheduledQueue()
    queue.set_plan(deadline_plan(slack_s=0.1))
    for task in range(3):
        queue.add(task, 1, 4, 5.0)  # 0.4 s each: two fit before 6.0, the third does not
    assert [queue.get(5.0)[0] for _ in range(2)] == [0, 1]
    got, retry_at = queue.get(5.0)
    assert got is None
    assert retry_at == pytest.approx(6.0, abs=0.11)
    queue.finish(0, 5.4)
    queue.finish(1, 5.8)
    assert queue.get(5.8)[0] is None
    queue.add(3, 0, 1, 6.0)
    assert queue.get(6.0)[0] == 3
    queue.finish(3, 6.1)
    assert queue.get(6.1)[0] == 2


def test_a_late_prediction_does_not_hold_the_wire() -> None:
    queue = ScheduledQueue()
    queue.set_plan(deadline_plan(slack_s=0.1))
    queue.add(0, 1, 6, 5.5)  # 0.6 s: past 6.5, when gradient 0 is due
    assert queue.get(6.0) == (None, 6.6)
    assert queue.get(6.59)[0] is None
    assert queue.get(6.6)[0] == 0
    assert queue.watchdog_releases == 0


def test_a_gradient_that_is_skipped_does_not_let_others_past_the_next_deadline() -> None:
    """Gradients 2, 1 and 0 at 0, 1 and 2 s, by ids with holes; 10 bytes a second; 1 does not come this time."""
    queue = ScheduledQueue(watchdog_s=10.0)
    half = QueuePlan(order={7: 0, 40: 1, 900: 2}, deadlines=(Deadline(1.0, 1), Deadline(2.0, 0)))
    plan = Plan(
        push=half,
        generation_s={7: 2.0, 40: 1.0, 900: 0.0},
        size_bytes={7: 1, 40: 1, 900: 25},
        network=Network(10.0),
        deadline_slack_s=0.25,
    )
    queue.set_plan(plan)
    queue.add(0, 900, 11, 5.0)  # 1.1 s: not before 6.0, and after that not before 7.0
    queue.add(1, 900, 8, 5.0)
    assert queue.get(5.0) == (None, 6.25)
    assert queue.get(6.25) == (None, 7.25), "gradient 0 may still come in time"
    queue.add(2, 7, 1, 7.0)
    assert [queue.get(7.0)[0] for _ in range(3)] == [2, 0, 1]
    assert queue.watchdog_releases == 0


def test_what_is_held_for_a_prediction_that_does_not_come_is_told_apart() -> None:
    queue = ScheduledQueue(watchdog_s=0.5)
    queue.set_plan(deadline_plan(slack_s=10.0))
    queue.add(0, 1, 6, 5.5)  # gradient 0 is due at 6.5, and would be waited for until 16.5
    assert queue.get(6.0) == (None, 6.5)
    assert (queue.get(6.5)[0], queue.in_flight) == (0, 1)
    assert (queue.watchdog_releases, queue.unanswered_releases) == (1, 0)


def test_a_group_travels_as_one_and_a_missing_member_does_not_hold_it_for_ever() -> None:
    half = QueuePlan(order={0: 0, 1: 1, 2: 2}, groups={1: 7, 2: 7})
    plan = Plan(push=half, size_bytes={1: 10, 2: 10})
    queue = filled(plan, 2)
    task, retry_at = queue.get(0.0)
    assert task is None
    assert retry_at == WATCHDOG_S
    queue.add(1, 1, 10, 0.1)
    assert drain(queue, 0.1) == [0, 1]
    queue.add(2, 2, 10, 1.0)
    assert queue.get(1.5)[0] is None
    assert queue.get(2.0)[0] == 2
    assert (queue.watchdog_releases, queue.unanswered_releases) == (1, 0)


def two_groups() -> Plan:
    """Gradients 3 and 2 are generated first and travel as one, then 1 and 0."""
    groups = {3: 0, 2: 0, 1: 1, 0: 1}
    generation_s = {3: 0.0, 2: 0.1, 1: 0.2, 0: 0.3}
    return Plan(
        push=QueuePlan(credit=1000, groups=groups), generation_s=generation_s, size_bytes=dict.fromkeys(groups, 10)
    )


@pytest.mark.parametrize("before_swap", [1, 2, 3, 4])
def test_a_plan_with_groups_begins_with_an_iteration(before_swap: int) -> None:
    """In the middle of one, 1 would wait for a 0 that has gone already, or 2 for a 3, until the watchdog comes."""
    queue = ScheduledQueue()
    for place, gradient in enumerate([3, 2, 1, 0]):
        if place == before_swap:
            queue.set_plan(two_groups())
        queue.add(place, gradient, 10, 0.0)
        assert drain(queue, 0.0) == [place]
    if before_swap == 4:  # between two iterations: it cannot be told that this one is new
        queue.set_plan(two_groups())
        for place, gradient in enumerate([3, 2, 1, 0]):
            queue.add(place, gradient, 10, 0.0)
            assert drain(queue, 0.0) == [place]
    for place, gradient, leave in [(0, 3, []), (1, 2, [0, 1]), (2, 1, []), (3, 0, [2, 3])]:
        queue.add(place, gradient, 10, 1.0)
        assert drain(queue, 1.0) == leave
    assert queue.watchdog_releases == 0


def test_a_plan_of_one_group_begins_at_once() -> None:
    """Nothing tells one of its gradients from the next iteration's."""
    groups = {0: 0, 1: 0}
    queue = filled(None, 1)
    assert drain(queue) == [0]
    queue.set_plan(
        Plan(push=QueuePlan(groups=groups), generation_s={0: 1.0, 1: 0.0}, size_bytes=dict.fromkeys(groups, 10))
    )
    queue.add(1, 1, 10, 0.0)
    assert drain(queue, 0.0) == []
    queue.add(2, 0, 10, 0.0)
    assert drain(queue, 0.0) == [1, 2]


def test_a_plan_without_groups_replaces_one_that_waits_for_an_iteration() -> None:
    queue = filled(None, 0)
    assert drain(queue) == [0]
    queue.set_plan(two_groups())
    queue.set_plan(ranked())
    for task, gradient in [(1, 3), (2, 1), (3, 3)]:
        queue.add(task, gradient, 10, 0.0)
    assert drain(queue, 0.0) == [2, 1, 3]


@given(st.floats(0, 1e6), st.floats(0.01, 10))
def test_asking_again_when_told_to_gives_another_answer(now: float, watchdog_s: float) -> None:
    """Whatever the rounding: a host that asks at exactly the time it was given is not sent away again."""
    queue = ScheduledQueue(watchdog_s=watchdog_s)
    queue.set_plan(Plan(push=QueuePlan(order={}, credit=1)))
    queue.add(1, 0, 100, now)
    queue.add(2, 1, 100, now)
    assert queue.get(now)[0] == 1
    held, retry_at = queue.get(now)
    assert held is None
    assert queue.get(retry_at)[0] == 2
    assert queue.watchdog_releases == 1


@given(st.floats(0, 1e6), st.floats(0.01, 10))
def test_a_group_that_is_overdue_when_told_is_released(now: float, watchdog_s: float) -> None:
    queue = ScheduledQueue(watchdog_s=watchdog_s)
    queue.set_plan(Plan(push=QueuePlan(groups={0: 0, 1: 0}), size_bytes={0: 100, 1: 100}))
    queue.add(1, 0, 100, now)
    held, retry_at = queue.get(now)
    assert held is None
    assert queue.get(retry_at)[0] == 1
