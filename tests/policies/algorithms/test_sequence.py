"""The order for all ranks: examples by hand, and properties for any profile."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy
from prophet_scheduler.policies.algorithms.collective import ArrivalOrder, ForwardOrder
from prophet_scheduler.policies.algorithms.sequence import (
    IssueOrder,
    iteration_s,
    make_sequence,
    operations_at_once,
    play_sequence,
)
from support.plain_wire import played

MB = 1_000_000
NETWORK = Network(10e6)
"""A megabyte takes 0.1 s."""
POLICIES = ("prophet", "p3", "fifo")

PROFILES = st.lists(
    st.tuples(st.integers(1, 5 * MB), st.floats(0.0, 0.5), st.floats(0.0, 0.2)), min_size=1, max_size=12
).map(
    lambda rows: Profile(
        "any",
        tuple(
            GradientProfile(f"g{place}", size, after_s, forward_s)
            for place, ((size, _, forward_s), after_s) in enumerate(
                zip(rows, list(itertools.accumulate(row[1] for row in reversed(rows)))[::-1], strict=True)
            )
        ),
        tuple(3 * place for place in range(len(rows))),
    )
)
NETWORKS = st.builds(Network, st.floats(1e6, 1e9), st.floats(0.0, 0.01))


def profile(*rows: tuple[float, float], forward_s: float = 0.1) -> Profile:
    """Return a profile; rows are (megabytes, time of generation), in forward order."""
    return Profile("made", tuple(GradientProfile("g", int(size * MB), at, forward_s) for size, at in rows))


def plan_of(policy: str, of: Profile, network: Network) -> Plan:
    return ForwardOrder().plan(of, network) if policy == "prophet" else get_policy(policy).plan(of, network)


STEPS = [(1, 0.25), (1, 0.15), (2, 0.1), (2, 0.0)]


@pytest.mark.parametrize(
    ("policy", "rows", "overhead_s", "order", "ends_s"),
    [
        # Gradient 3 is on the wire until 0.2; then 1 goes before 2; when 1 ends, 0 is ready.
        ("prophet", STEPS, 0.0, (3, 1, 0, 2), (0.4, 0.3, 0.6, 0.2)),
        ("fifo", STEPS, 0.0, (3, 2, 1, 0), (0.6, 0.5, 0.4, 0.2)),
        # A transfer is not interrupted.
        ("prophet", [(1, 0.01), (10, 0.0)], 0.0, (1, 0), (1.1, 1.0)),
        # The wire idles until something is ready.
        ("prophet", [(1, 1.0), (1, 0.0)], 0.0, (1, 0), (1.1, 0.1)),
        ("prophet", [(1, 0.0), (1, 0.0)], 0.05, (0, 1), (0.15, 0.3)),
    ],
)
def test_order_and_ends_by_hand(
    policy: str,
    rows: list[tuple[float, float]],
    overhead_s: float,
    order: tuple[int, ...],
    ends_s: tuple[float, ...],
) -> None:
    job, network = profile(*rows), Network(10e6, overhead_s)
    sequence = make_sequence(job, network, plan_of(policy, job, network))
    assert sequence.order == order
    assert sequence.ends_s == pytest.approx(ends_s)


@pytest.mark.parametrize(
    ("ends_s", "layer_by_layer", "behind_a_barrier"),
    [((0.3, 0.1), 0.5, 0.5), ((0.3, 0.9), 1.0, 1.1), ((0.1, 0.1), 0.4, 0.4)],
)
def test_iteration_ends_by_hand(ends_s: tuple[float, ...], layer_by_layer: float, behind_a_barrier: float) -> None:
    job, sequence = profile((1, 0.2), (1, 0.0)), IssueOrder((0, 1), ends_s)
    assert iteration_s(job, sequence) == pytest.approx(layer_by_layer)
    assert iteration_s(job, sequence, barrier=True) == pytest.approx(behind_a_barrier)


def test_gradients_held_back_forever_are_an_error() -> None:
    job = profile((1, 0.0), (1, 0.0))
    # One gradient of the group never comes.
    held = Plan(push=QueuePlan(groups=dict.fromkeys(range(3), 0)), size_bytes=dict.fromkeys(range(3), MB))
    with pytest.raises(ValueError, match="holds back"):
        make_sequence(job, NETWORK, held)


@given(job=PROFILES, network=NETWORKS, policy=st.sampled_from(POLICIES))
@settings(deadline=None)
def test_every_block_is_issued_once_and_not_before_it_is_ready(job: Profile, network: Network, policy: str) -> None:
    sequence = make_sequence(job, network, plan_of(policy, job, network))
    assert sorted(sequence.order) == list(range(len(job.gradients)))
    for gradient, end_s in zip(job.gradients, sequence.ends_s, strict=True):
        assert end_s >= gradient.generation_s + network.transfer_s(gradient.size_bytes) - 1e-9
    assert played(job, network, sequence.order).ends_s == pytest.approx(sequence.ends_s)


@given(job=PROFILES, network=NETWORKS, policy=st.sampled_from(POLICIES), data=st.data())
@settings(deadline=None)
def test_no_sequence_beats_the_bound(job: Profile, network: Network, policy: str, data: st.DataObject) -> None:
    bound_s = lower_bound_s(job, network.bandwidth) * (1 - 1e-9)
    assert iteration_s(job, make_sequence(job, network, plan_of(policy, job, network))) >= bound_s
    order = data.draw(st.permutations(range(len(job.gradients))))
    assert iteration_s(job, play_sequence(job, network, order)) >= bound_s


@given(job=PROFILES, network=NETWORKS, data=st.data())
@settings(deadline=None)
def test_behind_a_barrier_no_order_beats_arrival_order(job: Profile, network: Network, data: st.DataObject) -> None:
    arrival = make_sequence(job, network, ArrivalOrder().plan(job, network))
    order = data.draw(st.permutations(range(len(job.gradients))))
    other_s = iteration_s(job, play_sequence(job, network, order), barrier=True)
    assert iteration_s(job, arrival, barrier=True) <= other_s + 1e-9


@given(job=PROFILES, network=NETWORKS)
@settings(deadline=None)
def test_forward_order_is_at_most_one_block_worse_than_preemption(job: Profile, network: Network) -> None:
    forward = iteration_s(job, make_sequence(job, network, plan_of("prophet", job, network)))
    longest_s = max(network.transfer_s(gradient.size_bytes) for gradient in job.gradients)
    # The same iteration with overheads and preemption, and one block in flight when something urgent comes.
    rows = tuple(
        GradientProfile(
            g.name, g.size_bytes + int(network.overhead_s * network.bandwidth) + 1, g.generation_s, g.forward_s
        )
        for g in job.gradients
    )
    best = lower_bound_s(Profile("with overheads", rows), network.bandwidth)
    assert forward <= best + longest_s + 1e-6


def test_the_delay_counts_only_after_idleness() -> None:
    job = profile((1, 0.5), (1, 0.5), (1, 0.0))
    slow = Network(10e6, 0.0, 0.2)
    assert play_sequence(job, slow, (2, 0, 1)).ends_s == pytest.approx((0.8, 0.9, 0.3))
    made = make_sequence(job, slow, plan_of("fifo", job, slow))
    assert played(job, slow, made.order).ends_s == pytest.approx(made.ends_s)


@given(job=PROFILES, policy=st.sampled_from(POLICIES), delay_s=st.floats(0.0, 0.3), overhead_s=st.floats(0.0, 0.01))
@settings(deadline=None)
def test_sequences_equal_the_plain_model_for_any_delay(
    job: Profile, policy: str, delay_s: float, overhead_s: float
) -> None:
    network = Network(1e8, overhead_s, delay_s)
    made = make_sequence(job, network, plan_of(policy, job, network))
    assert played(job, network, made.order).ends_s == pytest.approx(made.ends_s)
    for gradient, end_s in zip(job.gradients, made.ends_s, strict=True):
        assert end_s >= gradient.generation_s + delay_s + network.transfer_s(gradient.size_bytes) - 1e-9


@given(job=PROFILES, network=NETWORKS, delay_s=st.floats(0.0, 0.3), data=st.data())
@settings(deadline=None)
def test_playing_an_order_equals_the_plain_model(
    job: Profile, network: Network, delay_s: float, data: st.DataObject
) -> None:
    far = Network(network.bandwidth, network.overhead_s, delay_s)
    order = data.draw(st.permutations(range(len(job.gradients))))
    assert play_sequence(job, far, order).ends_s == pytest.approx(played(job, far, order).ends_s)


def test_blocks_cost_their_share_of_a_long_delay() -> None:
    """Eight blocks are in flight at once, each delayed by 0.16 s: 64 take eight times as long, whatever their size."""
    slow = Network(1e9, 0.2e-3, 0.16)
    small = Profile("small", tuple(GradientProfile("g", MB // 8, 0.0) for _ in range(64)))
    large = Profile("large", tuple(GradientProfile("g", MB, 0.0) for _ in range(8)))
    small_s, large_s = (max(make_sequence(job, slow, plan_of("prophet", job, slow)).ends_s) for job in (small, large))
    assert small_s == pytest.approx(8 * 0.16, rel=0.05)
    assert large_s == pytest.approx(0.16 + 8 * slow.transfer_s(MB))


@pytest.mark.parametrize(("delay_s", "expected"), [(0.0, 3), (0.11, 3), (0.21, 4), (0.45, 7), (9.0, 8)])
def test_enough_operations_are_in_flight_to_keep_the_wire_busy(delay_s: float, expected: int) -> None:
    assert operations_at_once(Network(10_000.0, 0.0, delay_s), 1000, 8) == expected
