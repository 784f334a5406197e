"""MG-WFBP, and DDP's and Horovod's fusion."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prophet_papers.horovod import Horovod, fused_by_cycles
from prophet_papers.mg_wfbp import MgWfbp, best_merge, merge
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.policy import Policy
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models import zoo
from prophet_scheduler.policies.ddp import MEBIBYTE, Ddp, buckets
from support.lanes import ScheduledQueue
from support.merges import end_s

UNIT = Network(bandwidth=1.0, overhead_s=1.0)
"""A message of s bytes takes 1 + s seconds."""

POLICIES: list[Policy] = [MgWfbp(), MgWfbp(exact=True), Ddp(), Horovod()]


def one_by_one(count: int) -> list[list[int]]:
    return [[position] for position in reversed(range(count))]


def all_merges(count: int) -> list[list[list[int]]]:
    """Return every way to cut gradients, in order of generation, into groups of neighbours."""
    merges = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        groups = [[count - 1]]
        for cut, position in zip(cuts, reversed(range(count - 1)), strict=True):
            if cut:
                groups.append([])
            groups[-1].append(position)
        merges.append(groups)
    return merges


jobs = st.lists(st.tuples(st.floats(0.0, 4.0, allow_subnormal=False), st.integers(1, 4)), min_size=1, max_size=7).map(
    lambda gaps: (list(itertools.accumulate(gap for gap, _ in gaps))[::-1], [size for _, size in gaps])
)
"""(generation_s, sizes) in forward order."""


@pytest.mark.parametrize(
    ("overhead_s", "generation_s", "sizes", "groups"),
    [
        # The last layer is there at 0 and the next 0.5 later, less than the start-up of 1: together from 0.5 to 3.5.
        # The first layer comes 4.5 after they could start, so they do not wait for it.
        (1.0, [5.0, 0.5, 0.0], [1, 1, 1], [[2, 1], [0]]),
        # Gradients that come while a long message is on the wire wait anyway, and go as one.
        (1.0, [4.0, 3.0, 2.0, 0.0], [1, 1, 1, 9], [[3], [2, 1, 0]]),
        (0.0, [3.0, 2.0, 1.0], [1, 1, 1], [[2], [1], [0]]),
        # Gradient 0 is there before 1 could start at 4: not behind the wire, but in front of it.
        (0.0, [3.0, 2.0, 1.0], [1, 1, 3], [[2], [1, 0]]),
    ],
)
def test_mg_wfbp_by_hand(
    overhead_s: float, generation_s: list[float], sizes: list[int], groups: list[list[int]]
) -> None:
    assert merge(generation_s, sizes, Network(1.0, overhead_s)) == groups


def test_the_papers_merging_is_not_always_the_best() -> None:
    """Two bytes are there at 0. Waiting 0.5 for the next gradient looks good until the one after it comes too."""
    generation_s, sizes = [1.4, 0.5, 0.0], [1, 1, 2]
    papers = merge(generation_s, sizes, UNIT)
    assert papers == [[2, 1, 0]]
    assert end_s(papers, generation_s, sizes, UNIT) == pytest.approx(1.4 + 1 + 4)
    best = best_merge(generation_s, sizes, UNIT)
    assert best == [[2], [1, 0]]
    assert end_s(best, generation_s, sizes, UNIT) == pytest.approx(3 + 1 + 2)


@given(jobs)
def test_best_merge_is_best_and_the_papers_is_no_worse_than_none(job: tuple[list[float], list[int]]) -> None:
    generation_s, sizes = job
    ends = [end_s(groups, generation_s, sizes, UNIT) for groups in all_merges(len(sizes))]
    best = end_s(best_merge(generation_s, sizes, UNIT), generation_s, sizes, UNIT)
    papers = end_s(merge(generation_s, sizes, UNIT), generation_s, sizes, UNIT)
    assert best == pytest.approx(min(ends))
    assert best <= papers * (1 + 1e-12)
    assert papers <= end_s(one_by_one(len(sizes)), generation_s, sizes, UNIT) * (1 + 1e-12)


@given(jobs)
def test_the_rule_equals_the_authors_program(job: tuple[list[float], list[int]]) -> None:
    generation_s, sizes = job
    assert merge(generation_s, sizes, UNIT) == merge_as_published(generation_s, sizes, UNIT)


def merge_as_published(generation_s: Sequence[float], sizes: Sequence[int], network: Network) -> list[list[int]]:
    """The recurrences of the paper, step by step, with all three conditions of the authors' program (O(n^2))."""
    count = len(sizes)
    merged = list(sizes)
    cost = [network.transfer_s(size) for size in sizes]
    groups = [[count - 1]]
    for layer in range(count - 1, 0, -1):
        start = [0.0] * count
        start[count - 1] = generation_s[count - 1]
        for below in range(count - 2, -1, -1):
            start[below] = max(start[below + 1] + cost[below + 1], generation_s[below])
        ready = generation_s[layer - 1]
        hidden = ready >= start[layer] + cost[layer]
        if not hidden and (start[layer] > ready or ready - start[layer] < network.overhead_s):
            merged[layer - 1] += merged[layer]
            cost[layer], cost[layer - 1] = 0.0, network.transfer_s(merged[layer - 1])
            groups[-1].append(layer - 1)
        else:
            groups.append([layer - 1])
    return groups


def test_ddp_closes_a_bucket_with_the_gradient_that_fills_it() -> None:
    # In order of generation: 1 of 1 fills the first bucket; then 2 + 3 reach 5; 9 alone is more; 1 is left over.
    assert buckets([1, 9, 3, 2, 1], bucket_bytes=5, first_bucket_bytes=1) == [[4], [3, 2], [1], [0]]
    assert buckets([4, 4], bucket_bytes=100, first_bucket_bytes=1) == [[1], [0]]
    assert buckets([4], bucket_bytes=100, first_bucket_bytes=100) == [[0]]


def test_ddps_buckets_of_resnet50() -> None:
    sizes = [gradient.size_bytes for gradient in zoo.profile("resnet50").gradients]
    made = buckets(sizes)
    assert [position for bucket in made for position in bucket] == list(reversed(range(161)))
    totals = [sum(sizes[position] for position in bucket) for bucket in made]
    # fc.bias (4 kB) and fc.weight (8.2 MB) fill the first; every other one but the last reaches 25 MiB.
    assert made[0] == [160, 159]
    assert all(total >= 25 * MEBIBYTE for total in totals[1:-1])
    assert len(made) == 5


@pytest.mark.parametrize(
    ("generation_s", "sizes", "fusion_bytes", "groups"),
    [
        # Cycles at 0, 5, 10 ms: the gradient of exactly 5 ms is found by the cycle then.
        ([0.006, 0.005, 0.002, 0.0], [1, 1, 1, 1], 4, [[3], [2, 1], [0]]),
        # The buffer is filled in order, and larger gradients go alone.
        ([0.001] * 5, [1, 2, 9, 2, 2], 4, [[4, 3], [2], [1, 0]]),
        ([0.001] * 3, [1, 1, 1], 0, [[2], [1], [0]]),
        # 0.30000000000000004 is still found by the 60th cycle.
        ([0.1 + 0.2, 0.3], [1, 1], 4, [[1, 0]]),
    ],
)
def test_horovods_buffers_by_hand(
    generation_s: list[float], sizes: list[int], fusion_bytes: int, groups: list[list[int]]
) -> None:
    assert fused_by_cycles(generation_s, sizes, fusion_bytes) == groups


@pytest.mark.parametrize("model", ["resnet50", "vgg19", "bert-base"])
def test_horovod_fuses_the_steps_of_a_model(model: str) -> None:
    profile = zoo.profile(model)
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    times = [gradient.generation_s for gradient in profile.gradients]
    groups = fused_by_cycles(times, sizes)
    assert [position for group in groups for position in group] == list(reversed(range(len(sizes))))
    assert all(len(group) == 1 or sum(sizes[p] for p in group) <= 64 * MEBIBYTE for group in groups)
    assert all(len({times[p] for p in group}) == 1 for group in groups), "steps are further apart than a cycle"
    if model == "resnet50":
        assert len(groups) == 13


def test_fusion_refuses_impossible_sizes() -> None:
    with pytest.raises(UserError, match="ddp: bucket_bytes and first_bucket_bytes must be at least 1"):
        Ddp(bucket_bytes=0)
    with pytest.raises(UserError, match="horovod: fusion_bytes is -1"):
        Horovod(fusion_bytes=-1)
    with pytest.raises(UserError, match="horovod: cycle_s is 0"):
        Horovod(cycle_s=0)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_without_a_profile_gradients_go_one_by_one_and_only_mg_wfbp_needs_the_network(policy: Policy) -> None:
    assert policy.plan(None, None) == Plan(push=QueuePlan(credit=1), policy=policy.name)
    profile = zoo.profile("vgg19")
    unmeasured = policy.plan(profile, None)
    assert unmeasured == policy.plan(profile, UNIT) or (isinstance(policy, MgWfbp) and not unmeasured.push.groups)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_plan_groups_every_gradient_by_its_id(policy: Policy) -> None:
    profile = zoo.profile("resnet18", backward_s=0.02, forward_s=0.01)
    renumbered = Profile(profile.name, profile.gradients, ids=tuple(range(100, 162)))
    plan = policy.plan(renumbered, Network(125e6, overhead_s=0.001))
    assert set(plan.push.groups) == set(plan.size_bytes) == set(range(100, 162))
    assert sum(plan.size_bytes.values()) == profile.total_bytes
    # Groups are numbered in order of arrival, so numbers never rise from the first layer to the last.
    numbers = [plan.push.groups[gradient] for gradient in range(100, 162)]
    assert numbers == sorted(numbers, reverse=True)
    assert (plan.push.order, plan.push.credit, plan.pull) == (None, 1, QueuePlan())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_the_queue_sends_group_after_group(policy: Policy) -> None:
    generated = [0.009, 0.0085, 0.004, 0.003, 0.0]
    profile = Profile("five", tuple(GradientProfile(f"g{i}", 2 * MEBIBYTE, t) for i, t in enumerate(generated)))
    plan = policy.plan(profile, Network(125e6, overhead_s=0.002))
    queue = ScheduledQueue()
    queue.set_plan(plan)
    sent = []
    for gradient in reversed(range(5)):
        now = generated[gradient]
        queue.add(gradient, gradient, 2 * MEBIBYTE, now)
        task, _ = queue.get(now)
        while task is not None:
            assert all(
                plan.push.groups[other] != plan.push.groups[task] or generated[other] <= now for other in range(5)
            ), "a group leaves when all of it is there"
            sent.append(task)
            queue.finish(task, now)
            task, _ = queue.get(now)
    assert sent == [4, 3, 2, 1, 0]
    assert queue.watchdog_releases == 0
