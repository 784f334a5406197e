"""The lower bound by hand, and against every order on small jobs."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_scheduler.core.bound import blocks_bound_s, completion_times, forward_remaining, lower_bound_s
from prophet_scheduler.core.cut import MOST_BLOCK_BYTES
from prophet_scheduler.core.profile import Profile
from support.profiles import profile, resnet50


def test_compute_alone_where_the_network_is_fast() -> None:
    assert lower_bound_s(profile((1, 2.0, 0.5), (1, 1.0, 0.5)), 1e12) == pytest.approx(3.0)


def test_preemption_by_hand() -> None:
    # Gradient 1 (3 s) starts at 0; gradient 0 (1 s) preempts at 2 and ends at 3; gradient 1 ends at 4.
    assert lower_bound_s(profile((1, 2.0, 0.5), (3, 0.0, 0.5)), 1.0) == pytest.approx(4.5)


def test_the_replayed_resnet50_at_250_mbit_is_compute_plus_the_last_steps_first_layer() -> None:
    bound = lower_bound_s(resnet50(25_600_000), 250e6 / 8)
    assert 0.900 < bound < 0.905


def fluid_in_order(job: Profile, order: tuple[int, ...]) -> float:
    """Iteration time when unit pieces go by the ranks of `order`, preemptively, at one byte a second."""
    left = [g.size_bytes for g in job.gradients]
    done = [0.0] * len(left)
    now = 0.0
    while any(left):
        ready = [i for i in order if left[i] and job.gradients[i].generation_s <= now]
        if ready:
            left[ready[0]] -= 1
            done[ready[0]] = now + 1.0
        now += 1.0
    finished = job.backward_s
    for gradient, available in zip(job.gradients, done, strict=True):
        finished = max(finished, available) + gradient.forward_s
    return finished


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=4),
)
def test_no_order_beats_it_and_one_reaches_it(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: -row[1])
    job = profile(*((s, float(c), float(f)) for s, c, f in rows))
    bound = lower_bound_s(job, 1.0)
    times = [fluid_in_order(job, order) for order in itertools.permutations(range(len(rows)))]
    assert min(times) == pytest.approx(bound)


def test_when_each_gradient_ends_by_hand() -> None:
    # 2 is there at 0 (2 s), 1 at 1 (1 s) and preempts it, 0 at 5 finds the wire idle.
    job = profile((1, 5.0, 0.1), (1, 1.0, 0.2), (2, 0.0, 0.4))
    assert completion_times(job, [1.0, 1.0, 2.0]) == [6.0, 2.0, 3.0]
    assert forward_remaining(job) == pytest.approx([0.7, 0.6, 0.4])


def test_blocks_by_hand() -> None:
    # 16 bytes at one a second, 1 s a message: 4 blocks of 4 bytes. 16 + 4 to push all, then one once more, 4 + 1.
    assert blocks_bound_s(profile((16, 0.0, 0.5)), 1.0, 1.0) == pytest.approx(25.5)
    # And 2 s until it is answered.
    assert blocks_bound_s(profile((16, 0.0, 0.5)), 1.0, 1.0, 2.0) == pytest.approx(27.5)


def test_blocks_of_a_part_of_the_gradients_by_hand() -> None:
    # Gradient 0 alone is what takes longest: 3 s until it is there, then one block there and back, and all of forward.
    assert blocks_bound_s(profile((1, 3.0, 0.5), (1, 0.0, 0.5)), 1.0, 1.0) == pytest.approx(3 + 2 + 2 + 1)


def test_blocks_without_overhead_are_a_fluid() -> None:
    job = profile((1, 2.0, 0.5), (3, 0.0, 0.5))
    assert blocks_bound_s(job, 1.0, 0.0) == lower_bound_s(job, 1.0)
    assert blocks_bound_s(profile((MOST_BLOCK_BYTES * 2, 0.0, 0.0)), 1e6, 1e-9) > 8.192 + 2e-9


def test_blocks_that_cannot_be_larger() -> None:
    # Fewer messages would be better, and there are at least two.
    size = 2 * MOST_BLOCK_BYTES
    assert blocks_bound_s(profile((size, 0.0, 0.0)), size, 10.0) == pytest.approx(1 + 2 * 10 + 0.5 + 10)
