"""The simulated cluster against times computed by hand, and against what must hold for any schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prophet_scheduler.core._native import Exchange, OperationSpec, TensorSpec
from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.core.cut import Cut
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.events import DRAIN_S, EventKind, QueueKind
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.policies import get_policy, policy_names
from prophet_scheduler.simulate import Cluster, Costs, Job, Options, SimulatedRun, job_of_profile, simulate
from prophet_scheduler.simulate.cluster import compute_scale, with_traffic
from prophet_scheduler.simulate.job import alone, job_of_cut
from prophet_scheduler.simulate.run import MOST_TURNS, turn_s
from support.profiles import resnet50

BARE = Costs(header_bytes=0)


def two_layers(sizes: tuple[int, int] = (1000, 3000), barrier: bool = False) -> Job:
    """Backward of 1 s a layer, the last layer's gradient first; forward of 1 s a layer."""
    first, last = (GradientProfile("a", sizes[0], 2.0, 1.0), GradientProfile("b", sizes[1], 1.0, 1.0))
    profile = Profile("two", (first, last))
    return job_of_profile(profile, alone(profile), barrier=barrier)


def run_plan(job: Job, cluster: Cluster, plan: Plan | None = None, **options: object) -> SimulatedRun:
    chosen = Options(**{"iterations": 3, "partition_bytes": 10_000, "plan": plan, **options})  # type: ignore[arg-type]
    return simulate(job, cluster, None, chosen)


def finishes(run: SimulatedRun, queue: QueueKind) -> list[tuple[int, float]]:
    events = run.events[(run.events["kind"] == EventKind.FINISH) & (run.events["queue"] == queue)]
    return [(int(event["gradient"]), round(float(event["time_s"]), 6)) for event in events]


def starts(run: SimulatedRun, worker: int = 0) -> list[float]:
    return [round(float(value), 6) for value in run.marks[worker]["start_s"]]


def forward_begins(run: SimulatedRun) -> float:
    """Return when the first layer of the second iteration computes."""
    second = run.computing[run.computing["iteration"] == 1]
    return round(float(second["started_s"].min()), 6)


LINK = {"worker0": ((0.0, 1000.0),)}


def test_push_then_pull_over_one_link_in_order_of_arrival() -> None:
    run = run_plan(two_layers(), Cluster(1, 1, LINK, BARE))
    # Forward 0-2, backward 2-4: b is there at 3 and takes 3 s each way, a at 4 and takes 1 s each way.
    assert finishes(run, QueueKind.PUSH)[:2] == [(1, 6.0), (0, 7.0)]
    # b's request waits behind a's push, until 7; the answers follow it: 7-10 and 10-11.
    assert finishes(run, QueueKind.PULL)[:2] == [(1, 10.0), (0, 11.0)]
    assert starts(run)[:2] == [0.0, 4.0]
    assert forward_begins(run) == 11.0


def test_priority_sends_the_first_layer_first() -> None:
    ranked = QueuePlan(order={0: 0, 1: 1}, credit=1000)
    plan = Plan(push=ranked, pull=QueuePlan(order={0: 0, 1: 1}))
    run = run_plan(two_layers(), Cluster(1, 1, LINK, BARE), plan, partition_bytes=1000)
    # b's first partition leaves at 3 and is through at 4, when a is there and overtakes the rest of b.
    assert finishes(run, QueueKind.PUSH)[:4] == [(1, 4.0), (0, 5.0), (1, 6.0), (1, 7.0)]
    # a's request waits behind b's second partition, until 6; its answer takes another second.
    assert forward_begins(run) == 7.0


def test_a_barrier_waits_for_everything() -> None:
    run = run_plan(two_layers((3000, 1000), barrier=True), Cluster(1, 1, LINK, BARE))
    # b is pushed 3-4 and a 4-7; b's request waits for that, so b comes back 7-8 and a 8-11.
    assert forward_begins(run) == 11.0
    # Without the barrier layer a begins when a is back, though b is not: a's answer is the first of the two.
    ranked = QueuePlan(order={0: 0, 1: 1})
    plan = Plan(push=ranked, pull=ranked)
    with_barrier = run_plan(two_layers((1000, 3000), barrier=True), Cluster(1, 1, LINK, BARE), plan)
    without = run_plan(two_layers((1000, 3000)), Cluster(1, 1, LINK, BARE), plan)
    assert forward_begins(without) <= forward_begins(with_barrier)


def test_the_server_answers_when_the_last_worker_has_pushed() -> None:
    scale = [[1.0] * 3, [2.0] * 3]
    wide = {"worker0": ((0.0, 1e6),), "worker1": ((0.0, 1e6),)}
    synchronous = run_plan(two_layers(), Cluster(2, 1, wide, BARE), compute_scale=scale)
    # The straggler's backward ends at 8; it is answered at once, and so is the other.
    assert forward_begins(synchronous) == pytest.approx(8.002, abs=1e-6)
    asynchronous = run_plan(
        two_layers(), Cluster(2, 1, wide, BARE, exchange=Exchange.ASYNCHRONOUS), compute_scale=scale
    )
    assert forward_begins(asynchronous) == pytest.approx(4.002, abs=1e-6)


@pytest.mark.parametrize(
    ("cluster", "sizes", "queue", "finished"),
    [
        # b: starts at 3, 0.5 of overhead and 3.1 of bytes, 0.1 to the server, and the acknowledgement 0.1 + 0.1 back.
        (Cluster(1, 1, LINK, Costs(0.5, 0.1, header_bytes=100)), (1000, 3000), QueueKind.PUSH, [(1, 6.9)]),
        # The rate changes: b has 1 s at 1000, and the other 2000 bytes at 500.
        (Cluster(1, 1, {"worker0": ((0.0, 1000.0), (4.0, 500.0))}, BARE), (1000, 3000), QueueKind.PUSH, [(1, 8.0)]),
        # An idle link catches up by its burst.
        (Cluster(1, 1, LINK, replace(BARE, burst_bytes=500.0)), (1000, 3000), QueueKind.PUSH, [(1, 5.5), (0, 6.5)]),
        # Both push b at 3 over the server's one link, and a at 4 behind it: 3-5 and 5-7.
        (Cluster(2, 1, {"server0": LINK["worker0"]}, BARE), (1000, 1000), QueueKind.PUSH, [(1, 4.0), (0, 6.0)]),
        # b is there at 6 and summed up at 9; then it comes back over 3 s.
        (Cluster(1, 1, LINK, replace(BARE, sum_rate=1000.0)), (1000, 3000), QueueKind.PULL, [(1, 12.0)]),
    ],
    ids=["costs", "rate", "burst", "server", "sums"],
)
def test_what_a_message_takes(
    cluster: Cluster, sizes: tuple[int, int], queue: QueueKind, finished: list[tuple[int, float]]
) -> None:
    assert finishes(run_plan(two_layers(sizes), cluster), queue)[: len(finished)] == finished


def test_a_server_deals_with_one_message_after_another() -> None:
    costs = Costs(header_bytes=0, sum_rate=1000.0, server_overhead_s=0.5)
    run = run_plan(two_layers(), Cluster(1, 1, {}, costs))
    # b is there at 3, taken in at 3.5 and summed up at 6.5; a is there at 4 and taken in at 4.5, summed up at 7.5.
    assert finishes(run, QueueKind.PUSH)[:2] == [(1, 3.5), (0, 4.5)]
    # Sending an answer takes another half second.
    assert finishes(run, QueueKind.PULL)[:2] == [(1, 7.0), (0, 8.0)]
    both = run_plan(two_layers(), Cluster(2, 1, {}, Costs(header_bytes=0, server_overhead_s=0.5)))
    # Two pushes at 3 and two at 4, each half a second: worker 0's are the first of each two.
    assert finishes(both, QueueKind.PUSH)[:2] == [(1, 3.5), (0, 4.5)]
    # The two pushes of a and the two answers with b take until 6.0; the first answer with a is the next.
    assert forward_begins(both) == 6.5


def test_a_servers_time_counts_messages_and_not_bytes() -> None:
    costs = Costs(header_bytes=0, server_overhead_s=0.1)
    whole, parts = (
        run_plan(two_layers((1000, 4000)), Cluster(1, 1, {}, costs), partition_bytes=size) for size in (4000, 1000)
    )
    assert finishes(whole, QueueKind.PUSH)[0] == (1, 3.1)
    assert next(time_s for gradient, time_s in finishes(parts, QueueKind.PUSH) if gradient == 1) == 3.1
    assert finishes(parts, QueueKind.PULL)[3][1] == pytest.approx(3.8), "four in and four out"
    two = run_plan(two_layers((1000, 4000)), Cluster(1, 2, {}, costs), partition_bytes=1000)
    assert finishes(two, QueueKind.PULL)[3][1] == pytest.approx(3.4), "each server has half of them"


def test_a_collective_takes_one_tensor_at_a_time_when_all_have_it() -> None:
    links = {"worker0": ((0.0, 1000.0),), "worker1": ((0.0, 500.0),)}
    cluster = Cluster(2, 0, links, Costs(overhead_s=0.25, header_bytes=0), Exchange.COLLECTIVE)
    run = run_plan(two_layers(), cluster)
    # At the slower worker's rate: b 3 + 0.25 + 6, then a + 0.25 + 2. There is no pull.
    assert finishes(run, QueueKind.PUSH)[:2] == [(1, 9.25), (0, 11.5)]
    assert forward_begins(run) == 11.5
    assert not finishes(run, QueueKind.PULL)


def test_operations_of_a_collective_take_turns_on_the_processors_while_the_wire_carries_others() -> None:
    costs = Costs(header_bytes=0, operation_s=0.5, operation_rate=2000)
    without_limit = run_plan(two_layers(), Cluster(2, 0, {}, costs, Exchange.COLLECTIVE))
    # b is there at 3 and takes 0.5 + 1.5, a waits for it and takes 0.5 + 0.5.
    assert finishes(without_limit, QueueKind.PUSH)[:2] == [(1, 5.0), (0, 6.0)]
    narrow = run_plan(two_layers(), Cluster(2, 0, LINK, costs, Exchange.COLLECTIVE))
    assert finishes(narrow, QueueKind.PUSH)[:2] == [(1, 6.0), (0, 7.0)], "the wire takes longer than the processors"


def test_as_many_operations_of_a_collective_are_under_way_as_are_allowed() -> None:
    cluster = Cluster(2, 0, LINK, Costs(header_bytes=0, latency_s=1.0), Exchange.COLLECTIVE)
    assert finishes(run_plan(two_layers(), cluster), QueueKind.PUSH)[:2] == [(1, 7.0), (0, 8.0)]
    # The second one has the wire only when the first is back.
    assert finishes(run_plan(two_layers(), cluster, at_once=1), QueueKind.PUSH)[:2] == [(1, 7.0), (0, 9.0)]
    assert finishes(run_plan(two_layers(), cluster, at_once=2), QueueKind.PUSH)[:2] == [(1, 7.0), (0, 8.0)]


def test_a_large_operation_of_a_collective_waits_for_the_latency_of_each_piece() -> None:
    costs = Costs(header_bytes=0, latency_s=0.5, piece_bytes=1000)
    run = run_plan(two_layers(), Cluster(2, 0, LINK, costs, Exchange.COLLECTIVE))
    # b has three pieces: 3 + 3 + 3 * 0.5. a has one: the wire is free at 6.
    assert finishes(run, QueueKind.PUSH)[:2] == [(1, 7.5), (0, 7.5)]
    meanwhile = Cluster(2, 0, LINK, replace(costs, latency_s=4.0, meanwhile=0.75), Exchange.COLLECTIVE)
    # Of b's 12 s three quarters pass from 3 on, and of a's 4 from 4 on: 12 + 3, and 7 + 1.
    assert finishes(run_plan(two_layers(), meanwhile), QueueKind.PUSH)[:2] == [(0, 8.0), (1, 15.0)]
    with pytest.raises(UserError, match=r"meanwhile is 1\.5; it must be 1 or less"):
        Costs(meanwhile=1.5)


def test_partitions_go_round_the_servers() -> None:
    two = {"server0": ((0.0, 1000.0),), "server1": ((0.0, 1000.0),)}
    run = run_plan(two_layers((1000, 4000)), Cluster(1, 2, two, BARE), partition_bytes=1000)
    # b's four partitions over two servers' links: two at a time.
    assert [time_s for gradient, time_s in finishes(run, QueueKind.PUSH) if gradient == 1][:4] == [4.0, 4.0, 5.0, 5.0]


def test_background_traffic_takes_its_part_of_the_link() -> None:
    assert with_traffic(((0.0, 1000.0),), [(2.0, 4.0, 400.0)]) == ((0.0, 1000.0), (2.0, 600.0), (4.0, 1000.0))
    assert with_traffic(((0.0, 1000.0),), [(0.0, 4.0, 5000.0)]) == ((0.0, 10.0), (4.0, 1000.0))
    with pytest.raises(UserError, match="give it a bandwidth"):
        with_traffic((), [(0.0, 1.0, 1.0)])


def test_same_seed_same_bits_and_another_seed_another_run() -> None:
    profile = resnet50(5_000_000)
    job = job_of_cut(profile, Cut.uniform(131072))
    cluster = Cluster(3, 1, {f"worker{i}": ((0.0, 31.25e6),) for i in range(3)}, Costs(1e-4, 1e-4))

    def run(seed: int) -> SimulatedRun:
        scale = compute_scale(3, 6, jitter=0.05, seed=seed)
        return simulate(job, cluster, get_policy("prophet"), Options(iterations=6, compute_scale=scale))

    assert run(1).marks.tobytes() == run(1).marks.tobytes()
    assert run(1).events.tobytes() == run(1).events.tobytes()
    assert run(1).marks.tobytes() != run(2).marks.tobytes()


def test_the_learner_plans_on_the_virtual_clock() -> None:
    profile = resnet50(25_600_000)
    job = job_of_cut(profile, Cut.uniform(131072))
    cluster = Cluster(2, 1, {"worker0": ((0.0, 31.25e6),), "worker1": ((0.0, 31.25e6),)}, Costs(1e-4, 1.4e-4))
    run = simulate(job, cluster, get_policy("prophet"), Options(iterations=12))
    assert run.plans >= 1
    assert run.plan is not None and run.plan.network is not None
    partition_s = 131_072 / 31.25e6 + 1e-4
    assert run.plan.network.transfer_s(131_072) == pytest.approx(partition_s, rel=0.05)
    assert len(run.iteration_s(warmup=5)) == 2 * (12 - 1 - 5)


def test_waiting_for_what_never_comes_is_one_line() -> None:
    job = Job("stuck", (OperationSpec(1.0, 0, [], []),), (TensorSpec(8, [0]),), ((0,),), (8,))
    with pytest.raises(UserError, match="stands still: worker 0 is in iteration 1 with 1 operations to go"):
        run_plan(job, Cluster(1, 1, LINK, BARE))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(0), "workers is 0"),
        (lambda: Cluster(1, 0), "servers is 0"),
        (lambda: Cluster(1, 1, {"worker7": ()}), "names 'worker7'"),
        (lambda: Cluster(1, 1, {"worker0": ((1.0, 5.0),)}), "must start at 0 s"),
        (lambda: Cluster(1, 1, {"worker0": ((0.0, 0.0),)}), "above 0"),
        (lambda: Costs(latency_s=-1), "latency_s is -1"),
        (lambda: Costs(server_overhead_s=-1), "server_overhead_s is -1"),
        (lambda: run_plan(two_layers(), Cluster(1), iterations=0), "iterations is 0"),
    ],
)
def test_impossible_clusters_are_one_line(make: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()  # type: ignore[operator]


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    count = draw(st.integers(1, 8))
    times = sorted(draw(st.lists(st.integers(1, 40), min_size=count, max_size=count)), reverse=True)
    sizes = draw(st.lists(st.integers(1, 50_000), min_size=count, max_size=count))
    forward = draw(st.lists(st.integers(0, 10), min_size=count, max_size=count))
    rows = zip(sizes, times, forward, strict=True)
    return Profile("drawn", tuple(GradientProfile("g", s, t / 1000, f / 1000) for s, t, f in rows))


@settings(max_examples=60, deadline=None)
@given(profiles(), st.sampled_from(policy_names()), st.sampled_from([4096, 16_384, 1 << 20]))
def test_no_policy_beats_the_lower_bound(profile: Profile, policy: str, partition_bytes: int) -> None:
    rate = 1e6
    job = job_of_profile(profile, alone(profile))
    options = Options(iterations=6, partition_bytes=partition_bytes)
    cluster = Cluster(2, 1, {"worker0": ((0.0, rate),), "worker1": ((0.0, rate),)}, BARE)
    run = simulate(job, cluster, get_policy(policy, partition_bytes=partition_bytes), options)
    per_iteration = np.diff(run.marks[0]["backward_s"]).mean()
    assert per_iteration >= lower_bound_s(profile, rate) - 1e-9
    # Every partition leaves once and comes back once.
    for queue in QueueKind:
        done = run.events[(run.events["queue"] == queue) & (run.events["kind"] == EventKind.FINISH)]
        began = run.events[(run.events["queue"] == queue) & (run.events["kind"] == EventKind.START)]
        assert len(done) <= len(began)
        assert int(done["bytes"].sum()) >= 5 * profile.total_bytes


def test_the_learner_has_turns_as_in_a_job_but_on_a_link_that_takes_minutes() -> None:
    job = two_layers((1_000_000, 3_000_000))
    assert turn_s(job, Cluster(2, 1, {}, BARE)) == DRAIN_S
    usual = {"worker0": ((0.0, 400_000.0),), "worker1": ((0.0, 1e9),)}
    assert turn_s(job, Cluster(2, 1, usual, BARE)) == DRAIN_S
    slow = {"worker0": ((0.0, 2.0), (5.0, 10.0)), "server0": ((0.0, 1.0),)}
    assert turn_s(job, Cluster(2, 1, slow, BARE)) == 400_000 / MOST_TURNS


def test_a_link_of_some_bits_per_second_is_simulated_as_soon_as_any() -> None:
    job = job_of_profile(resnet50(5_000_000), alone(resnet50(5_000_000)))
    run = simulate(job, Cluster(2, 1, {"worker0": ((0.0, 1.25),)}), get_policy("prophet"), Options(iterations=12))
    assert run.iteration_s(3).mean() > 0.9 * 5_000_000 / 1.25
