"""The policy Caramel: its plans by hand, and in the real queue."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_papers.caramel import Caramel
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import QueueKind
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline, Plan
from prophet_scheduler.core.profile import GradientProfile, Profile
from support.lanes import ScheduledQueue
from support.profiles import resnet50

UNIT = Network(1.0)
"""One byte a second without overhead: bytes are seconds."""


def test_the_plan_by_hand() -> None:
    # Generated: c at 0 (4 bytes), b at 1 and a at 2 (1 byte each, joined: the network has c until 5).
    # Read: a at 0, b at 3, c at 6.
    profile = Profile(
        "p",
        (GradientProfile("a", 1, 2.0, 3.0), GradientProfile("b", 1, 1.0, 3.0), GradientProfile("c", 4, 0.0, 3.0)),
        (10, 11, 12),
    )
    plan = Caramel().plan(profile, Network(1.0, 1.0))  # the threshold is 1.5 bytes
    # c (5 s) fits before its read at 6, [1, 6]; a and b (3 s) are read at 0 and generated at 2: they are the gap.
    assert plan.push.groups == {12: 0, 11: 1, 10: 1}
    assert plan.push.order == {12: 1, 11: 0, 10: 0}
    assert plan.push.credit == 1
    assert plan.size_bytes == {10: 1, 11: 1, 12: 4}
    assert plan.push.deadlines == (Deadline(0.0, 1), Deadline(2.0, 0))
    assert plan.generation_s == {10: 2.0, 11: 1.0, 12: 0.0}
    assert plan.deadline_slack_s == 0.001
    assert Caramel().plan(profile, Network(1.0, 1.0), jitter_s=0.5).deadline_slack_s == 0.5
    assert plan.pull.order == plan.push.order and not plan.pull.groups
    unscheduled = Caramel(scheduling=False).plan(profile, Network(1.0, 1.0))
    assert unscheduled.push.order == {12: 0, 11: 1, 10: 1} and not unscheduled.push.deadlines
    assert Caramel(holding=False).plan(profile, Network(1.0, 1.0)).push == replace(plan.push, deadlines=())
    alone = Caramel(batching=False).plan(profile, Network(1.0, 1.0))
    assert alone.push.groups == {12: 0, 11: 1, 10: 2}
    assert sorted((alone.push.order or {}).values()) == [0, 1, 2]


def test_options_give_the_name_and_are_checked() -> None:
    assert Caramel().name == "caramel"
    assert Caramel(batching=False, scheduling=False).name == "caramel-no-batching-no-scheduling"
    with pytest.raises(UserError, match="threshold is -1; it must be 0 or more bytes"):
        Caramel(threshold=-1)


def test_without_profile_or_network_gradients_go_alone_in_order_of_arrival() -> None:
    assert Caramel().plan(None, UNIT) == Caramel().plan(None, None)
    assert Caramel().plan(None, None).push.credit == 1
    plan = Caramel().plan(resnet50(25_600_000), None)
    assert plan.push.order == {i: 160 - i for i in range(161)} and not plan.push.groups


def test_gradients_of_one_step_have_distinct_times() -> None:
    profile = Profile("p", tuple(GradientProfile(f"g{i}", 9, 1.0, 1.0) for i in range(4)))
    plan = Caramel().plan(profile, UNIT)  # no overhead: four batches
    times = [plan.generation_s[gradient] for gradient in (3, 2, 1, 0)]
    assert times == sorted(set(times)) and times == pytest.approx([1.0] * 4)
    assert sorted(times) == [deadline.time_s for deadline in plan.push.deadlines]


@pytest.mark.parametrize("network", [Network(31.25e6, 0.0005, 0.004), Network(1.25e9, 0.0007)])
def test_a_models_plan_has_every_gradient(network: Network) -> None:
    profile = resnet50(25_600_000)
    policy = Caramel()
    plan = policy.plan(profile, network)
    assert set(plan.push.groups) == set(plan.push.order or {}) == set(profile.gradient_ids)
    batches, packed = policy.pack(profile, network)
    assert len(batches) == len(set(plan.push.groups.values())) == len(set((plan.push.order or {}).values())) < 161
    assert len(policy.depths(profile, network)) == len(batches)
    assert packed.iteration_s < Caramel(batching=False, scheduling=False).pack(profile, network)[1].iteration_s


def drive(plan: Plan, profile: Profile, network: Network) -> list[tuple[int, float]]:
    """Return (gradient, time it left) for the real queue on a wire like `network`, with one task per gradient."""
    queue = ScheduledQueue(QueueKind.PUSH, watchdog_s=1e6)
    queue.set_plan(plan)
    coming = sorted((g.generation_s, -i) for i, g in enumerate(profile.gradients))
    now = 0.0
    left: list[tuple[int, float]] = []
    while len(left) < len(profile.gradients):
        while coming and coming[0][0] <= now:
            at, index = coming.pop(0)
            queue.add(-index, profile.gradient_ids[-index], profile.gradients[-index].size_bytes, at)
        task, _ = queue.get(now)
        if task is None:
            now = coming[0][0]
            continue
        left.append((task, now))
        now += network.transfer_s(profile.gradients[task].size_bytes)
        queue.finish(task, now)
    return left


def test_the_queue_follows_the_plan() -> None:
    # Packed: c [0, 3], the batch of a and b [4, 6] and a gap of 2, d in forward, just before it is read: [9, 18].
    profile = Profile(
        "p",
        (
            GradientProfile("a", 1, 4.0, 4.0),
            GradientProfile("b", 1, 2.5, 4.0),
            GradientProfile("c", 3, 0.0, 4.0),
            GradientProfile("d", 9, 0.0, 4.0),
        ),
    )
    policy = Caramel(threshold=2.0)
    assert [(slot.start_s, slot.end_s) for slot in policy.pack(profile, UNIT)[1].slots] == [(0, 3), (4, 6), (9, 18)]
    assert drive(policy.plan(profile, UNIT), profile, UNIT) == [(2, 0.0), (1, 4.0), (0, 5.0), (3, 6.0)]
    greedy = Caramel(threshold=2.0, holding=False).plan(profile, UNIT)
    assert drive(greedy, profile, UNIT) == [(2, 0.0), (3, 3.0), (1, 12.0), (0, 13.0)], "d is in the way"


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=9),
    st.integers(0, 8),
)
def test_no_batch_ends_later_than_it_is_packed(rows: list[tuple[int, int, int]], threshold: int) -> None:
    rows.sort(key=lambda row: -row[1])
    profile = Profile("p", tuple(GradientProfile(f"g{i}", s, float(c), float(f)) for i, (s, c, f) in enumerate(rows)))
    policy = Caramel(threshold=float(threshold))
    batches, packed = policy.pack(profile, UNIT)
    ends = {g: at + profile.gradients[g].size_bytes for g, at in drive(policy.plan(profile, UNIT), profile, UNIT)}
    for slot in packed.slots:
        assert max(ends[gradient] for gradient in batches[slot.batch].members) <= slot.end_s + 1e-6
