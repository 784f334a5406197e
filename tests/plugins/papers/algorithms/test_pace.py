"""PACE's scheduling: by hand, against the paper's programs and every schedule, and the policy's plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prophet_papers.algorithms.pace.fusion import balanced_fusion, segment_bytes
from prophet_papers.algorithms.pace.problem import Problem, TimedTransfer, problem_of
from prophet_papers.algorithms.pace.schedule import WireSegment, iteration_time, preemptive_schedule
from prophet_papers.pace import Pace, urgency
from prophet_scheduler.core.bound import lower_bound_s
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind, training_graph
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.profile import Profile
from support.graphs import graph
from support.lanes import ScheduledQueue
from support.profiles import profile

ONE_BYTE_A_SECOND = Network(1.0)


def problem(*rows: tuple[float, float, float], floor: float = 0.0) -> Problem:
    """Rows are release, length and tail."""
    return Problem("test", tuple(TimedTransfer(f"t{i}", *row) for i, row in enumerate(rows)), floor)


def seconds(graph: Graph) -> Problem:
    return problem_of(graph, ONE_BYTE_A_SECOND.transfer_s)


def least_time(problem: Problem) -> float:
    return iteration_time(problem, preemptive_schedule(problem))


# ---- from a graph to releases and tails


def test_the_tails_of_figure_6_follow_its_formula() -> None:
    f7, f8, f9, f10, f11, f12 = 1.0, 2.0, 4.0, 16.0, 32.0, 64.0
    figure = graph(
        {f"y{i}": (1, "b") for i in range(1, 7)},
        {
            "b": (3.0, ""),
            "7": (f7, "y6"),
            "8": (f8, "7 y3"),
            "9": (f9, "8 y2"),
            "10": (f10, "7 y5"),
            "11": (f11, "10 y4"),
            "12": (f12, "9 11 y1"),
        },
    )
    tails = {transfer.name: transfer.tail for transfer in seconds(figure).transfers}
    assert tails == {
        "y1": f12,
        "y2": f9 + f12,
        "y3": f8 + f9 + f12,
        "y4": f11 + f12,
        "y5": f10 + f11 + f12,
        "y6": f7 + max(f8 + f9, f10 + f11) + f12,
    }
    assert {transfer.release for transfer in seconds(figure).transfers} == {3.0}


def test_a_transfer_waits_for_its_last_input_and_an_operation_for_all_transfers() -> None:
    joined = graph(
        {"x": (2, "a b"), "y": (1, "a")},
        {"a": (1.0, ""), "b": (5.0, ""), "c": (2.0, "x y"), "alone": (9.0, "a")},
    )
    assert seconds(joined) == Problem(
        "test", (TimedTransfer("y", 1.0, 1.0, 2.0), TimedTransfer("x", 5.0, 2.0, 2.0)), 10.0
    )


@pytest.mark.parametrize(
    ("impossible", "message"),
    [
        (graph({"x": (1, ""), "y": (1, "x")}, {}), "transfer 'y' comes after transfer 'x'"),
        (graph({"x": (1, ""), "y": (1, "b")}, {"a": (1.0, "x"), "b": (1.0, "a")}), "'y' comes after transfer 'x'"),
        (graph({}, {"a": (1.0, "")}), "has no transfers"),
    ],
)
def test_impossible_graphs_are_refused(impossible: Graph, message: str) -> None:
    with pytest.raises(UserError, match=message):
        seconds(impossible)


# ---- the schedule by hand


@pytest.mark.parametrize(
    ("rows", "segments"),
    [
        # 1 is released at 2 and more urgent, 2 at 3 and less so: 0 goes on, then 2.
        ([(0, 4, 1), (2, 1, 5), (3, 1, 0)], [(0, 0, 2), (1, 2, 3), (0, 3, 5), (2, 5, 6)]),
        # An equal tail does not interrupt.
        ([(0, 3, 1), (1, 1, 1)], [(0, 0, 3), (1, 3, 4)]),
        # A release that changes nothing does not cut.
        ([(0, 3, 2), (1, 1, 1), (5, 1, 0)], [(0, 0, 3), (1, 3, 4), (2, 5, 6)]),
        # The wire idles only while nothing is released.
        ([(2, 1, 0), (5, 1, 0)], [(0, 2, 3), (1, 5, 6)]),
    ],
)
def test_a_longer_tail_interrupts_and_nothing_else_does(
    rows: list[tuple[float, float, float]], segments: list[tuple[int, float, float]]
) -> None:
    assert preemptive_schedule(problem(*rows)) == tuple(WireSegment(*segment) for segment in segments)


def test_an_iteration_ends_with_its_last_path_even_without_a_transfer() -> None:
    assert least_time(problem((0, 4, 1), (2, 1, 5), (3, 1, 0))) == 8.0, "transfer 1 ends at 3 and 5 follow"
    assert least_time(problem((0, 1, 1), floor=9.0)) == 9.0
    assert least_time(seconds(graph({"x": (4, "a")}, {"a": (1.0, "")}))) == 5.0, "nothing waits for the transfer"
    job = problem((0, 4, 3), (2, 1, 5))
    assert iteration_time(job, preemptive_schedule(job)) == 8.0
    assert iteration_time(job, preemptive_schedule(job), resume=0.5) == 8.5, "transfer 0 ends at 5.5"


def test_impossible_times_and_schedules_for_another_problem_are_refused() -> None:
    with pytest.raises(UserError, match="transfer 't0': 'tail' is -1"):
        problem((0, 1, -1))
    with pytest.raises(UserError, match="transfer 't0': 'length' is inf"):
        problem((0, math.inf, 0))
    job = problem((0, 4, 3), (2, 1, 5))
    with pytest.raises(UserError, match="'t0' needs 4, the schedule gives it 3"):
        iteration_time(job, [WireSegment(0, 0, 3), WireSegment(1, 3, 4)])
    with pytest.raises(UserError, match="'t1' needs 1, the schedule gives it 0"):
        iteration_time(job, [WireSegment(0, 0, 4)])


# ---- the optimum


def random_graph(rng: np.random.Generator) -> Graph:
    """Return a graph with times in whole seconds and up to ten transfers between two stages of computing."""
    operations = [Operation("b0", OperationKind.COMPUTE, (), float(rng.integers(0, 4)))]

    def some(names: Sequence[str], most: int) -> tuple[str, ...]:
        return tuple(
            str(n) for n in rng.choice(names, size=min(len(names), int(rng.integers(1, most + 1))), replace=False)
        )

    before = ["b0"]
    for index in range(1, int(rng.integers(1, 6))):
        operations.append(Operation(f"b{index}", OperationKind.COMPUTE, some(before, 2), float(rng.integers(0, 4))))
        before.append(f"b{index}")
    transfers = [f"t{index}" for index in range(int(rng.integers(1, 11)))]
    for name in transfers:
        operations.append(Operation(name, OperationKind.TRANSFER, some(before, 2), size_bytes=int(rng.integers(1, 4))))
    known = [*before, *transfers]
    for index in range(int(rng.integers(1, 8))):
        operations.append(Operation(f"f{index}", OperationKind.COMPUTE, some(known, 4), float(rng.integers(0, 6))))
        known.append(f"f{index}")
    return Graph("random", tuple(operations))


def least_of_all_schedules(job: Problem) -> float:
    """Return the least end over all schedules in whole slots, also those that idle. It finds, slot by slot,
    the least end so far for each state of what is left (an axis for each transfer)."""
    ends = np.full([int(t.length) + 1 for t in job.transfers], np.inf)
    ends[(-1,) * ends.ndim] = job.floor
    horizon = int(max(t.release for t in job.transfers) + sum(t.length for t in job.transfers))
    for slot in range(horizon):
        after = ends.copy()
        for axis, transfer in enumerate(job.transfers):
            if transfer.release <= slot:
                source, target = np.moveaxis(ends, axis, 0)[1:].copy(), np.moveaxis(after, axis, 0)[:-1]
                source[0] = np.maximum(source[0], slot + 1 + transfer.tail)
                np.minimum(target, source, out=target)
        ends = after
    return float(ends[(0,) * ends.ndim])


def end_of(graph: Graph, transfer_ends: Mapping[str, float]) -> float:
    """Return when the last operation ends by constraint 5, with the transfers ending as given."""
    ends = dict(transfer_ends)
    for operation in graph.operations:
        if operation.kind is OperationKind.COMPUTE:
            ends[operation.name] = operation.time_s + max((ends[name] for name in operation.inputs), default=0.0)
    return max(ends.values())


def check_feasible(job: Problem, segments: Sequence[WireSegment]) -> dict[str, float]:
    """Check that transfers go one at a time, none before its release, each as long as it is. Return their ends."""
    carried = dict.fromkeys(range(len(job.transfers)), 0.0)
    ends = {}
    for segment, following in zip(segments, [*segments[1:], WireSegment(0, math.inf, math.inf)], strict=True):
        assert job.transfers[segment.transfer].release <= segment.start < segment.end <= following.start
        carried[segment.transfer] += segment.end - segment.start
        ends[job.transfers[segment.transfer].name] = segment.end
    assert [carried[i] for i in carried] == pytest.approx([t.length for t in job.transfers])
    return ends


def test_algorithm_and_brute_force_agree_on_1000_random_graphs() -> None:
    rng = np.random.default_rng(20200706)
    compared = 0
    for _ in range(1000):
        random = random_graph(rng)
        job = seconds(random)
        segments = preemptive_schedule(job)
        least = iteration_time(job, segments)
        assert len(segments) <= 2 * len(job.transfers) - 1
        # Theorem 1: releases, tails and floor give the same end as the graph itself.
        assert end_of(random, check_feasible(job, segments)) == least
        if len(job.transfers) <= 7:
            assert least == least_of_all_schedules(job)
            compared += 1
    assert compared > 500


def the_papers_program(job: Problem) -> float:
    """Return the end by (14) as printed, for problems so small that its weights (TN)^(t + tail) are finite.

    Slots count from 1, and slot t may be used by what is released at t - 1.
    """
    from scipy.optimize import LinearConstraint, milp

    n, slots = len(job.transfers), int(max(t.release for t in job.transfers) + sum(t.length for t in job.transfers))
    base = float(slots * n)
    pairs = [(i, t) for i in range(n) for t in range(1, slots + 1)]
    tail = [transfer.tail for transfer in job.transfers]
    zero = [base ** tail[i] for i, _ in pairs]
    weights = [base ** (t + tail[i]) for i, t in pairs]
    demand = [[float(i == row) for i, _ in pairs] for row in range(n)]
    wire = [[float(t == row) for _, t in pairs] for row in range(1, slots + 1)]
    solved = milp(
        c=np.array(weights) - np.array(zero),  # (12) and (13) put 1 - x for the first lambda and x for the second
        constraints=[
            LinearConstraint(np.array(demand), lb=[t.length for t in job.transfers]),
            LinearConstraint(np.array(wire), ub=1.0),
        ],
        bounds=(0.0, np.array([float(t > job.transfers[i].release) for i, t in pairs])),
    )
    assert solved.status == 0
    x = np.rint(solved.x)
    assert solved.x == pytest.approx(x, abs=1e-6), "Theorem 2: whole numbers without asking for them"
    return max(t + tail[i] for (i, t), on in zip(pairs, x, strict=True) if on)


@pytest.mark.parametrize("seed", range(30))
def test_the_papers_own_program_agrees_where_it_can_be_computed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [(int(rng.integers(0, 3)), int(rng.integers(1, 3)), int(rng.integers(0, 4))) for _ in range(3)]
    job = problem(*((float(r), float(g), float(q)) for r, g, q in rows))
    assert the_papers_program(job) == least_time(job)


times = st.floats(0, 10, allow_subnormal=False)


@given(st.lists(st.tuples(times, st.floats(0.1, 5), times), min_size=1, max_size=6))
def test_the_optimum_is_the_bound_of_the_worst_set_of_transfers(
    rows: list[tuple[float, float, float]],
) -> None:
    job = problem(*rows)
    bounds = []
    for chosen in range(1, 2 ** len(rows)):
        members = [row for index, row in enumerate(rows) if chosen >> index & 1]
        bounds.append(min(r for r, _, _ in members) + sum(g for _, g, _ in members) + min(q for _, _, q in members))
    assert least_time(job) == pytest.approx(max(bounds))


# ---- profiles and the policy

NETWORK = Network(bandwidth=100.0, overhead_s=0.5)


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    rows = draw(st.lists(st.tuples(st.integers(1, 400), times, st.floats(0, 3)), min_size=1, max_size=8))
    return profile(*sorted(rows, key=lambda row: -row[1]))


@given(profiles())
def test_without_overhead_the_schedule_of_a_profile_is_the_lower_bound(job: Profile) -> None:
    network = Network(100.0)
    assert least_time(problem_of(training_graph(job), network.transfer_s)) == pytest.approx(
        lower_bound_s(job, network.bandwidth)
    )
    fusion = balanced_fusion(training_graph(job), network)
    assert fusion.iteration_s == pytest.approx(lower_bound_s(job, network.bandwidth))


@given(profiles())
def test_a_plan_ranks_the_first_layer_first_and_groups_neighbours(job: Profile) -> None:
    plan = Pace().plan(job, NETWORK)
    assert plan.push.order == plan.pull.order == {index: index for index in range(len(job.gradients))}
    group_of_each = [plan.push.groups[index] for index in range(len(job.gradients))]
    assert group_of_each == sorted(group_of_each)
    assert plan.push.credit == 1
    assert plan.size_bytes == {index: g.size_bytes for index, g in enumerate(job.gradients)}
    fusion = balanced_fusion(training_graph(job), NETWORK)
    assert len(set(group_of_each)) == len(fusion.groups)
    cuts = Pace().segments(job, NETWORK)
    for group, parts in cuts.items():
        assert sum(parts) == sum(g.size_bytes for i, g in enumerate(job.gradients) if group_of_each[i] == group)
        assert min(parts) > 0


def test_before_anything_is_known_the_plan_is_forward_order() -> None:
    assert Pace().plan(None, None).push.order == {}
    assert Pace().plan(None, NETWORK).push.groups == {}
    early = Pace().plan(profile((1, 2.0, 1.0), (1, 1.0, 1.0), ids=(7, 5)), None)
    assert early.push.order == {7: 0, 5: 1}
    assert (early.push.groups, early.push.credit, early.policy) == ({}, 1, "pace")


def test_gradients_of_one_step_are_fused_without_waiting_for_a_large_one() -> None:
    # Three of 10 bytes at 1.0 s, one of 400 at 0: the overhead of 0.5 s is worth more than waiting.
    job = profile((10, 1.0, 0.1), (10, 1.0, 0.1), (10, 1.0, 0.1), (400, 0.0, 0.1), ids=(10, 11, 12, 13))
    plan = Pace().plan(job, NETWORK)
    assert plan.push.groups == {10: 0, 11: 0, 12: 0, 13: 1}
    # Group 1 runs from 0 to 1 (0.5 s of overhead, then 50 bytes), group 0 from 1 to 1.8, group 1 to 5.3.
    assert Pace().segments(job, NETWORK) == {0: (30,), 1: (50, 350)}
    assert balanced_fusion(training_graph(job), NETWORK).iteration_s == pytest.approx(5.3 + 0.1)


def test_a_segment_shorter_than_the_overhead_carries_nothing() -> None:
    job = profile((10, 0.2, 1.0), (400, 0.0, 0.0))
    graph = training_graph(job)
    fusion = balanced_fusion(graph, NETWORK)
    assert [len(group) for group in fusion.groups] == [1, 1]
    assert len(fusion.segments) == 3
    assert segment_bytes(fusion, graph, NETWORK) == ((400,), (10,))


def test_a_graph_with_branches_decides_the_order() -> None:
    # Two branches: the first layer's is short, the second's long.
    branches = graph(
        {"g0": (100, "b0"), "g1": (100, "b1")},
        {"b1": (1.0, ""), "b0": (1.0, "b1"), "short": (1.0, "g0"), "long": (9.0, "g1"), "end": (1.0, "short long")},
    )
    fusion = balanced_fusion(branches, NETWORK)
    assert [fusion.groups[group] for group in urgency(fusion)] == [("g1",), ("g0",)]
    assert fusion.iteration_s == pytest.approx(1.0 + 1.5 + 10.0)
    one_after_another = profile((100, 2.0, 1.0), (100, 1.0, 9.0), ids=(4, 9))
    assert Pace().plan(one_after_another, NETWORK).push.order == {4: 0, 9: 1}


def test_pace_best_is_a_separate_policy() -> None:
    rows = [(294, 5.0, 0.0), (1, 5.0, 0.0), (118, 4.0, 1.0), (4, 2.0, 1.0), (175, 1.0, 2.0), (18, 0.0, 2.0)]
    job, network = profile(*rows), Network(100.0, 2.0)
    paper, best = Pace(), Pace(balanced=False)
    assert best.plan(job, network).push.groups != paper.plan(job, network).push.groups
    assert (paper.plan(job, network).policy, best.plan(job, network).policy) == ("pace", "pace-best")


def test_a_fused_tensor_waits_for_its_members_and_interrupts_less_urgent_ones() -> None:
    job = profile((10, 1.0, 0.1), (10, 1.0, 0.1), (10, 1.0, 0.1), (400, 0.0, 0.1))
    queue = ScheduledQueue()
    queue.set_plan(Pace().plan(job, NETWORK))
    for task in range(4):
        queue.add(task, 3, 100, 0.0)
    assert queue.get(0.0)[0] == 0
    assert queue.get(0.0)[0] is None, "one at a time"
    queue.add(10, 2, 10, 0.1)
    queue.add(11, 1, 10, 0.1)
    queue.finish(0, 0.2)
    assert queue.get(0.2)[0] == 1, "the group is not complete"
    queue.add(12, 0, 10, 0.3)
    sent: list[int] = []
    for step in range(5):
        queue.finish(1 if step == 0 else sent[-1], 0.4 + step)
        following = queue.get(0.4 + step)[0]
        assert following is not None
        sent.append(following)
    assert sent == [10, 11, 12, 2, 3]
