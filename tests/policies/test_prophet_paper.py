"""The paper's own policy: under its plan the queue does the same as Algorithm 1."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from prophet_scheduler.core.cut import MOST_BLOCK_BYTES, Cut, blocks_of
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Deadline, Plan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.assembler import assemble
from support.lanes import ScheduledQueue
from support.profiles import resnet50

ACKNOWLEDGED, GENERATED, ASK = range(3)
"""Events, in their order if they are at the same time."""


def wire_starts(profile: Profile, network: Network, plan: Plan, began: float = 0.0) -> list[float]:
    """Return when, after backward began, each gradient starts on a wire like `network`, first come first served.

    There is one iteration, which goes exactly as the profile says.
    """
    queue = ScheduledQueue(watchdog_s=1e9)
    queue.set_plan(plan)
    ids = profile.gradient_ids
    # Of gradients generated at the same time, the last layer's comes first.
    agenda = [(began + g.generation_s, GENERATED, -index) for index, g in enumerate(profile.gradients)]
    heapq.heapify(agenda)
    starts = [-1.0] * len(ids)
    free = began
    while agenda:
        now, what, number = heapq.heappop(agenda)
        if what == GENERATED:
            queue.add(-number, ids[-number], profile.gradients[-number].size_bytes, now)
        elif what == ACKNOWLEDGED:
            queue.finish(number, now)
        if agenda and agenda[0][:2] <= (now, GENERATED):
            continue
        task, retry_at = queue.get(now)
        if task is not None:
            starts[task] = max(now, free) - began
            free = max(now, free) + network.transfer_s(profile.gradients[task].size_bytes)
            heapq.heappush(agenda, (free + network.ack_delay_s, ACKNOWLEDGED, task))
            heapq.heappush(agenda, (now, ASK, 0))
        elif retry_at < float("inf"):
            heapq.heappush(agenda, (retry_at, ASK, 0))
    assert queue.pending == queue.in_flight == queue.watchdog_releases == 0
    return starts


def paper_starts(profile: Profile, network: Network) -> list[float]:
    plan = get_policy("prophet-paper").plan(profile, network, jitter_s=0.002)
    return wire_starts(profile, network, plan, began=10.0)


def ends_late(profile: Profile, network: Network, starts: Sequence[float]) -> list[int]:
    """Return the gradients that were on the wire when a more urgent one came (constraint 11)."""
    late = []
    for i, (gradient, start) in enumerate(zip(profile.gradients, starts, strict=True)):
        comes = [k.generation_s for k in profile.gradients[:i] if k.generation_s > start]
        if comes and start + network.transfer_s(gradient.size_bytes) > min(comes) + 1e-9:
            late.append(i)
    return late


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Profile, Network]:
    """Draw whole times and sizes, and overheads that keep every block's end well away from generation times."""
    count = draw(st.integers(1, 30))
    times = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)), reverse=True)
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    ids = draw(st.lists(st.integers(0, 10_000), min_size=count, max_size=count, unique=True))
    gradients = tuple(GradientProfile(f"g{i}", s, float(c)) for i, (s, c) in enumerate(zip(sizes, times, strict=True)))
    return Profile("drawn", gradients, tuple(sorted(ids))), Network(draw(st.sampled_from([1.0, 2.0, 4.0])), 0.0137)


@settings(deadline=None)
@given(jobs())
def test_the_queue_starts_each_gradient_as_in_algorithm_1(job: tuple[Profile, Network]) -> None:
    assert paper_starts(*job) == pytest.approx(assemble(*job).start_s, abs=1e-6)


@pytest.mark.parametrize("mbit", [100, 250, 1000, 4000])
def test_the_queue_starts_resnet_50s_blocks_as_in_algorithm_1(mbit: int) -> None:
    profile, network = in_blocks(resnet50(102_200_000)), Network(mbit * 125e3, 0.0001)
    assert paper_starts(profile, network) == pytest.approx(assemble(profile, network).start_s, abs=1e-6)


@settings(deadline=None)
@given(jobs(), st.sampled_from([0.031, 0.31]))
def test_late_acknowledgements_break_no_constraint(job: tuple[Profile, Network], ack_delay_s: float) -> None:
    """The algorithm ignores acknowledgements. A gradient that waits for one may no longer fit into backward."""
    profile, network = job[0], dataclasses.replace(job[1], ack_delay_s=ack_delay_s)
    starts = paper_starts(profile, network)
    assert all(start >= g.generation_s - 1e-9 for start, g in zip(starts, profile.gradients, strict=True)), "7"
    in_time = sorted(range(len(starts)), key=starts.__getitem__)
    ends = [starts[i] + network.transfer_s(profile.gradients[i].size_bytes) for i in in_time]
    assert all(end <= starts[i] + 1e-9 for end, i in zip(ends, in_time[1:], strict=False)), "8"
    forward = [i for i in in_time if starts[i] >= profile.backward_s]
    assert forward == sorted(forward), "9"
    assert not ends_late(profile, network, starts), "11"
    assert starts[0] <= profile.backward_s + ack_delay_s + 1e-9


def in_blocks(profile: Profile) -> Profile:
    """Return the profile that a job with blocks of whole gradients learns, with the ids of its blocks."""
    sizes = [gradient.size_bytes for gradient in profile.gradients]
    blocks = blocks_of(sizes, [None] * len(sizes), Cut.uniform(MOST_BLOCK_BYTES))
    assert len(blocks) > len(sizes), "some are above BytePS's own partition size"
    gradients = tuple(
        dataclasses.replace(profile.gradients[piece.gradient], size_bytes=block.size_bytes)
        for block in blocks
        for piece in block.pieces
    )
    return Profile(profile.name, gradients, tuple(block.id for block in blocks))


def test_without_a_network_there_are_no_deadlines() -> None:
    plan = get_policy("prophet-paper").plan(resnet50(25_600_000), None)
    assert not plan.push.deadlines
    profile, network = resnet50(25_600_000), Network(31.25e6)
    assert ends_late(profile, network, wire_starts(profile, network, plan)), "the deadlines do something"
    assert not ends_late(profile, network, paper_starts(profile, network))


def test_every_gradient_but_the_first_has_a_deadline() -> None:
    gradients = tuple(GradientProfile(f"g{i}", 10, time_s) for i, time_s in enumerate((3.0, 2.0, 2.0, 1.0)))
    plan = get_policy("prophet-paper").plan(Profile("small", gradients, (5, 17, 18, 40)), Network(100.0))
    after_2 = plan.generation_s[17]
    assert 2.0 < after_2 < 2.0 + 1e-9
    assert plan.push.deadlines == (Deadline(2.0, 2), Deadline(after_2, 1), Deadline(3.0, 0))
    assert plan.generation_s == {5: 3.0, 17: after_2, 18: 2.0, 40: 1.0}


@pytest.mark.parametrize(("sizes", "credit"), [((10, 300, 20), 300), ((10, 9_000_000), MOST_BLOCK_BYTES)])
def test_the_credit_is_the_largest_message(sizes: tuple[int, ...], credit: int) -> None:
    profile = Profile("sizes", tuple(GradientProfile("g", size, 1.0) for size in sizes))
    assert get_policy("prophet-paper").plan(profile, None).push.credit == credit
