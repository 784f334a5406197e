"""The search for the best blocks of an engine of collectives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_scheduler.core.choice import Choice, ChoosingPolicy, Measured, Question, Shape
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, UNIT_BYTES, Cut, blocks_of, learning_cut
from prophet_scheduler.core.network import Network
from prophet_scheduler.models import zoo
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.chooser import AS_GOOD
from prophet_scheduler.policies.algorithms.collective import (
    LEAST_SIZE,
    SIZES,
    ArrivalOrder,
    CollectivePolicy,
    ForwardOrder,
)
from prophet_scheduler.policies.algorithms.sequence import learning_sizes
from support.profiles import resnet50

PROFILE = resnet50(100_000_000, backward_s=0.2, forward_s=0.1)
POLICY = CollectivePolicy(ForwardOrder())
RATE = 312.5e6


def question(overhead_s: float, anew: bool = True) -> Question:
    return Question(PROFILE, Network(RATE, overhead_s), Shape(2, 1), (learning_cut(PROFILE.total_bytes),), anew=anew)


def choices(asked: Question, events: int = 1 << 40, policy: CollectivePolicy = POLICY) -> list[Choice]:
    search = policy.search(asked)
    while not search.work(events):
        pass
    return list(search.choices)


def test_all_sizes_are_judged_and_the_cut_in_force() -> None:
    assert {choice.cut for choice in choices(question(1e-3))} == {
        *(Cut.uniform(size) for size in SIZES if size >= LEAST_SIZE),
        learning_cut(PROFILE.total_bytes),
    }
    assert [choice.cut for choice in choices(question(1e-3, anew=False))] == [learning_cut(PROFILE.total_bytes)]
    assert choices(question(1e-3), events=1) == choices(question(1e-3)), "in turns"


def test_blocks_grow_with_the_cost_of_a_message() -> None:
    profile = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)

    def best(overhead_s: float) -> int:
        asked = Question(profile, Network(31.25e6, overhead_s), Shape(2, 1), (), anew=True)
        return choices(asked)[0].cut.block_bytes_at(0)

    sizes = [best(overhead_s) for overhead_s in (0.0, 1e-3, 1e-2)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_many_ranks_need_blocks_larger_than_a_server_takes() -> None:
    profile = resnet50(1_300_000_000, backward_s=0.13, forward_s=0.04)
    steps, trip_s = 2 * 63, 70e-6
    first = learning_cut(profile.total_bytes, learning_sizes(profile.total_bytes, steps * trip_s))
    asked = Question(profile, Network(6.25e9, steps * trip_s), Shape(64, 1), (first,), anew=True)
    best = choices(asked)[0]
    assert best.cut.block_bytes_at(0) > 4 * MOST_BLOCK_BYTES
    assert len(blocks_of([profile.total_bytes], [0], first)) < 100, "nor are its first blocks small"


@pytest.mark.parametrize(
    ("backward_s", "rate", "most"), [(3e-3, 122e6, 2), (3e-3, 1e9, 1), (3e-3, 12.5e6, 2), (0.06, 12.5e6, 8)]
)
def test_a_small_job_has_few_blocks_unless_more_are_faster(backward_s: float, rate: float, most: int) -> None:
    profile = resnet50(1_600_000, backward_s=backward_s, forward_s=backward_s / 2)
    first = learning_cut(profile.total_bytes, learning_sizes(profile.total_bytes))
    best = choices(Question(profile, Network(rate, 0.2e-3), Shape(2, 1), (first,), anew=True))[0]
    count = -(-profile.total_bytes // best.cut.block_bytes_at(0))
    assert count <= most
    assert count > 2 or most <= 2


def test_equally_good_choices_list_the_largest_blocks_first() -> None:
    ranked = choices(question(0.0))
    least_s = min(choice.iteration_s for choice in ranked)
    good = [choice for choice in ranked if choice.iteration_s <= least_s * (1 + AS_GOOD)]
    assert ranked[: len(good)] == good
    sizes = [choice.cut.typical_bytes(PROFILE.total_bytes) for choice in good]
    assert sizes == sorted(sizes, reverse=True)


def test_a_barrier_changes_the_choice_and_the_order() -> None:
    """Large blocks then delay nothing urgent; only the last blocks must not take long."""
    policy = CollectivePolicy(ForwardOrder(), ArrivalOrder())
    profile = resnet50(25_600_000, backward_s=0.6, forward_s=0.3)
    by_barrier = {}
    for barrier in (False, True):
        asked = Question(profile, Network(31.25e6, 2e-3), Shape(2, 1), (), anew=True, barrier=barrier)
        by_barrier[barrier] = choices(asked, policy=policy)[0]
        order = policy.chosen_plan(by_barrier[barrier], asked).push.order
        assert (order is None) == barrier
    assert by_barrier[True].iteration_s > by_barrier[False].iteration_s
    assert CollectivePolicy(ForwardOrder()).ordered(profile, None, barrier=True).push.order is not None


def test_long_delays_make_few_blocks_best() -> None:
    """As with four ranks, 5 ms each way and 1 Gbit/s: at most eight blocks are in flight, and small ones cost more."""
    profile = resnet50(9_000_000, backward_s=0.2, forward_s=0.1)
    best = {}
    for delay_s in (0.0, 0.12):
        asked = Question(profile, Network(83e6, 0.0, delay_s), Shape(4, 1), (), anew=True)
        ranked = choices(asked)
        best[delay_s] = ranked[0].cut.block_bytes_at(0)
        if delay_s:
            by_size = {choice.cut.block_bytes_at(0): choice.iteration_s for choice in ranked}
            assert by_size[128 << 10] > 2 * ranked[0].iteration_s
    assert best[0.12] > best[0.0]


def test_segments_of_large_blocks_wait_for_notices() -> None:
    """Measured: BERT-base's 100 MB, 0.2 + 0.1 s, two ranks, 1 Gbit/s and 5 ms each way."""
    profile = zoo.profile("bert-base", total_bytes=100_000_000, backward_s=0.2, forward_s=0.1)
    asked = Question(profile, Network(118e6, 0.3e-3, 0.041), Shape(2, 0), (), anew=True)
    by_size = {choice.cut.block_bytes_at(0): choice.iteration_s for choice in choices(asked)}
    assert by_size[16 << 20] == pytest.approx(1.122, rel=0.05)
    assert by_size[64 << 20] == pytest.approx(1.568, rel=0.1)


def test_unexplained_time_is_attributed_to_messages() -> None:
    profile = resnet50(25_600_000, backward_s=0.1, forward_s=0.05)
    small = Cut.uniform(128 << 10)
    asked = Question(profile, Network(125e6, 0.5e-3), Shape(4, 1), (small,), anew=True)
    before = {choice.cut: choice.iteration_s for choice in choices(asked)}
    measured = Measured(small, 1 << 20, 2 * before[small])
    after = {choice.cut: choice.iteration_s for choice in choices(replace(asked, measured=measured))}
    assert after[small] == pytest.approx(2 * before[small], rel=0.01)
    large = Cut.uniform(2 << 20)
    assert after[large] - before[large] < (after[small] - before[small]) / 12
    none = replace(asked, measured=Measured(small, 1 << 20, 0.5 * before[small]))
    assert {choice.cut: choice.iteration_s for choice in choices(none)} == before


def test_a_choices_plan_has_its_cut_and_the_order_of_its_blocks() -> None:
    asked = question(1e-3)
    choice = choices(asked)[0]
    assert isinstance(POLICY, ChoosingPolicy)
    plan = POLICY.chosen_plan(choice, asked)
    assert (plan.cut, plan.push.credit) == (choice.cut, choice.credit)
    assert plan.push.order is not None
    assert list(plan.push.order.values()) == list(range(len(plan.push.order)))
    assert CollectivePolicy(get_policy("p3")).plan(PROFILE, Network(RATE)).cut is None, "no cut of the policy's own"


@pytest.mark.parametrize(("delay_s", "most"), [(0.0, 64), (0.002, 64), (0.04, 40), (0.08, 20), (0.12, 16), (0.4, 16)])
def test_longer_delays_make_fewer_first_blocks(delay_s: float, most: int) -> None:
    total = 9_000_000
    cut = learning_cut(total, learning_sizes(total, delay_s))
    assert len({segment.block_bytes for segment in cut.segments}) >= 2
    count = len(blocks_of([total], [0], cut))
    assert count <= most
    assert count >= 8


@pytest.mark.parametrize("total", [1, 1_000_000, 25_600_000, 100_000_000, 10**10])
def test_first_blocks_have_several_sizes_and_are_few(total: int) -> None:
    sizes = learning_sizes(total)
    assert len(set(sizes)) == 4
    assert max(sizes) >= 7 * min(sizes)
    assert max(sizes) <= SIZES[-1]
    cut = learning_cut(total, sizes)
    if total >= 16 * max(sizes):
        assert {segment.block_bytes for segment in cut.segments} == {size // UNIT_BYTES * UNIT_BYTES for size in sizes}
