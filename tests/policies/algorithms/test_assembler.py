"""Algorithm 1 on the paper's example and by hand, and its constraints as properties."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from prophet_scheduler.policies.algorithms.assembler import assemble, wait_time_s
from support.profiles import profile as profile_of


def profile(*gradients: tuple[int, float], forward_s: float = 0.0) -> Profile:
    """From (bytes, generation time), most urgent first."""
    return profile_of(*((size, generated_s, forward_s) for size, generated_s in gradients))


@pytest.mark.parametrize(
    ("rows", "overhead_s", "start_s", "blocks"),
    [
        # Fig. 5: gradient 1, in three partitions, is ready at 0; two of them can go before gradient 0 comes.
        ([(1, 2.5), (1, 0.0), (1, 0.0), (1, 0.0)], 0.0, (2.5, 0.0, 1.0, 3.5), [(1, 2), (0, 3)]),
        # 3 s of wire between steps at 0 and 3; gradient 3 (2 s) goes, gradient 4 (2 s) does not fit behind it.
        ([(1, 6.0), (1, 3.0), (1, 3.0), (2, 0.0), (2, 0.0)], 0.0, (6.0, 3.0, 4.0, 0.0, 7.0), [(3,), (1, 2), (0, 4)]),
        # A gradient that fits nowhere waits for forward.
        ([(1, 2.0), (100, 0.0)], 0.0, (2.0, 3.0), [(0, 1)]),
        # With an overhead of 0.5 s a message, the second no longer fits.
        ([(1, 2.0), (1, 0.0), (1, 0.0)], 0.5, (2.0, 0.0, 3.5), [(1,), (0, 2)]),
        ([(5, 1.0)], 0.0, (1.0,), [(0,)]),
    ],
)
def test_starts_and_blocks_by_hand(
    rows: list[tuple[int, float]], overhead_s: float, start_s: tuple[float, ...], blocks: list[tuple[int, ...]]
) -> None:
    schedule = assemble(profile(*rows), Network(1.0, overhead_s))
    assert schedule.start_s == start_s
    assert [block.gradients for block in schedule.blocks] == blocks
    assert [block.in_backward for block in schedule.blocks] == [True] * (len(blocks) - 1) + [False]


def test_waiting_time_by_hand() -> None:
    job = profile((1, 2.0), (1, 0.0), (1, 0.0), forward_s=1.0)
    schedule = assemble(job, Network(1.0))
    assert schedule.start_s == (2.0, 0.0, 1.0)
    # u = 4, 2, 3: two seconds before forward starts, and nothing after.
    assert wait_time_s(job, Network(1.0), schedule.start_s) == pytest.approx(2.0)


def test_the_assembled_order_waits_less_than_arrival_order() -> None:
    job = profile((1, 2.5), (1, 0.0), (1, 0.0), (1, 0.0), forward_s=0.5)
    network = Network(1.0)
    fifo = (3.0, 0.0, 1.0, 2.0)
    assert wait_time_s(job, network, assemble(job, network).start_s) < wait_time_s(job, network, fifo)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Profile, Network]:
    count = draw(st.integers(1, 30))
    times = sorted(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)), reverse=True)
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    network = Network(draw(st.sampled_from([1.0, 2.0, 4.0])), overhead_s=draw(st.sampled_from([0.0, 0.25])))
    return profile(*zip(sizes, map(float, times), strict=True)), network


@given(jobs())
def test_constraints_7_8_9_and_11(job: tuple[Profile, Network]) -> None:
    plan, network = job
    schedule = assemble(plan, network)
    cost = [network.transfer_s(g.size_bytes) for g in plan.gradients]
    start = schedule.start_s
    assert sorted(i for block in schedule.blocks for i in block.gradients) == list(range(len(start)))
    for i, gradient in enumerate(plan.gradients):
        assert start[i] >= gradient.generation_s, "7: pushed after it is generated"
    in_time = sorted(range(len(start)), key=lambda i: start[i])
    for before, after in itertools.pairwise(in_time):
        assert start[before] + cost[before] <= start[after] + 1e-9, "8: one at a time"
    forward = [i for i in in_time if start[i] >= plan.backward_s]
    assert forward == sorted(forward), "9: by priority once backward is over"
    assert start[0] == plan.backward_s, "gradient 0 goes when it is generated"
    for i in range(len(start)):
        if start[i] < plan.backward_s:
            for k in range(i):
                later = plan.gradients[k].generation_s > start[i]
                assert not later or start[i] + cost[i] <= plan.gradients[k].generation_s + 1e-9, "11"
