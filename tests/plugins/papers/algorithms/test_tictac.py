"""TicTac: the paper's examples by hand, Algorithm 1 against its text, and TAO against every order."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prophet_papers.algorithms.tictac.ordering import (
    Properties,
    general_time,
    graph_time,
    precedes,
    properties,
    received,
    tao,
    tio,
)
from prophet_papers.algorithms.tictac.worker import Bounds, Worker, flat_graph, sequential_graph
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind
from prophet_scheduler.core.network import Network
from support.graphs import graph

ONE_BYTE_A_SECOND = graph_time(Network(1.0))


FIGURE_2 = graph({"recv2": 3, "recv1": 2}, {"op1": (4.0, "recv1"), "op2": (5.0, "op1 recv2")})
CASE_2 = graph(
    {"d": 1, "c": 1, "b": 1, "a": 1}, {"op1": (1.0, "a b"), "op2": (1.0, "op1 c"), "op3": (1.0, "op2 d")}
)  # Figure 4b


# ---- Algorithm 1 and the comparator


def test_the_properties_of_figure_2() -> None:
    assert properties(FIGURE_2, ONE_BYTE_A_SECOND) == {
        "recv1": Properties(communication_s=2.0, load_s=4.0, impending_s=5.0),
        "recv2": Properties(communication_s=3.0, load_s=0.0, impending_s=5.0),
    }


def test_equation_5_decides_and_a_tie_goes_to_the_smaller_impending_communication() -> None:
    hidden, hiding = Properties(1.0, 4.0, 9.0), Properties(3.0, 1.0, 5.0)
    assert precedes(hidden, hiding), "min(P_B, M_A) = 1 < min(P_A, M_B) = 3"
    near, far = Properties(1.0, 0.0, 2.0), Properties(1.0, 0.0, 3.0)
    assert precedes(near, far)
    assert not precedes(hiding, hidden) and not precedes(far, near) and not precedes(near, near)


def test_the_comparator_is_not_transitive_although_the_paper_says_so() -> None:
    a, b, c = Properties(2.0, 5.0, 8.0), Properties(1.0, 1.0, 7.0), Properties(5.0, 2.0, 6.0)
    assert precedes(a, c), "by Eq. 5: 2 < 5"
    assert precedes(c, b), "tie at 1, M+ 6 < 7"
    assert precedes(b, a), "tie at 1, M+ 7 < 8"


times = st.integers(0, 4).map(float)


@given(times, times, times, times, times, times)
def test_equation_5_alone_is_transitive(ma: float, pa: float, mb: float, pb: float, mc: float, pc: float) -> None:
    a, b, c = (Properties(m, p, math.inf) for m, p in ((ma, pa), (mb, pb), (mc, pc)))
    if precedes(a, b) and precedes(b, c):
        assert precedes(a, c)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph: receives, then computing that waits for any earlier operations, and a few sends."""
    names = [f"r{i}" for i in range(draw(st.integers(1, 5)))]
    operations = [Operation(name, OperationKind.TRANSFER, size_bytes=draw(st.integers(1, 4))) for name in names]
    for place in range(draw(st.integers(1, 7))):
        inputs = tuple(draw(st.lists(st.sampled_from(names), max_size=3, unique=True)))
        if inputs and draw(st.integers(0, 4)) == 0:
            size = draw(st.integers(1, 4))
            operations.append(Operation(f"s{place}", OperationKind.TRANSFER, inputs, size_bytes=size))
        else:
            operations.append(Operation(f"o{place}", OperationKind.COMPUTE, inputs, float(draw(st.integers(0, 4)))))
            names.append(f"o{place}")
    return Graph("random", tuple(operations))


def as_written(job: Graph, outstanding: set[str]) -> dict[str, Properties]:
    """Algorithm 1 line by line, with sets."""
    depends: dict[str, set[str]] = {}
    for operation in job.operations:
        depends[operation.name] = set().union(*(depends[name] for name in operation.inputs))
        if operation.kind is OperationKind.TRANSFER:
            depends[operation.name].add(operation.name)
    load = dict.fromkeys(outstanding, 0.0)
    impending = dict.fromkeys(outstanding, math.inf)
    for operation in job.computing:
        held = depends[operation.name] & outstanding
        if len(held) == 1:
            load[min(held)] += operation.time_s
        for name in held if len(held) > 1 else ():
            impending[name] = min(impending[name], sum(ONE_BYTE_A_SECOND(job[transfer]) for transfer in held))
    return {name: Properties(ONE_BYTE_A_SECOND(job[name]), load[name], impending[name]) for name in outstanding}


@given(graphs())
def test_properties_equal_algorithm_1_as_written(job: Graph) -> None:
    names = {operation.name for operation in received(job)}
    assert properties(job, ONE_BYTE_A_SECOND) == as_written(job, names)


@given(graphs())
def test_tao_equals_algorithm_2_as_written(job: Graph) -> None:
    names = [operation.name for operation in received(job)]
    expected = []
    while names:
        values = as_written(job, set(names))
        best = names[0]
        for name in names[1:]:
            if precedes(values[name], values[best]):
                best = name
        expected.append(best)
        names.remove(best)
    order = tao(job, ONE_BYTE_A_SECOND)
    assert list(order) == expected
    assert list(order.values()) == list(range(len(expected)))


# ---- TAO


def test_figure_2_has_a_good_and_a_bad_order() -> None:
    worker = Worker(FIGURE_2, ONE_BYTE_A_SECOND)
    assert worker.makespan_s({"recv1": 0, "recv2": 1}) == 2 + 4 + 5
    assert worker.makespan_s({"recv2": 0, "recv1": 1}) == 3 + 2 + 4 + 5
    assert list(tao(FIGURE_2, ONE_BYTE_A_SECOND)) == ["recv1", "recv2"]


def test_case_1_takes_the_better_of_both_orders_whatever_the_times() -> None:
    for ma, pa, mb, pb in itertools.product(range(1, 5), range(4), range(1, 5), range(4)):
        job = graph({"a": ma, "b": mb}, {"x": (float(pa), "a"), "y": (float(pb), "b")})
        a_first, b_first = ma + max(pa, mb) + pb, mb + max(pb, ma) + pa
        worker = Worker(job, ONE_BYTE_A_SECOND)
        assert worker.makespan_s({"a": 0, "b": 1}) == a_first
        assert worker.makespan_s({"b": 0, "a": 1}) == b_first
        assert worker.makespan_s(tao(job, ONE_BYTE_A_SECOND)) == min(a_first, b_first)


def test_case_2_decides_by_impending_communication() -> None:
    values = properties(CASE_2, ONE_BYTE_A_SECOND)
    assert {name: p.impending_s for name, p in values.items()} == {"a": 2.0, "b": 2.0, "c": 3.0, "d": 4.0}
    assert {p.load_s for p in values.values()} == {0.0}
    assert list(tao(CASE_2, ONE_BYTE_A_SECOND)) == ["b", "a", "c", "d"]


def test_times_can_reverse_an_order() -> None:
    job = graph({"a": 4, "b": 1}, {"x": (4.0, "a"), "y": (3.0, "b"), "z": (0.0, "x y")})
    assert list(tao(job, ONE_BYTE_A_SECOND)) == ["b", "a"]
    slow = {"b": 9.0}
    assert list(tao(job, lambda operation: slow.get(operation.name, ONE_BYTE_A_SECOND(operation)))) == ["a", "b"]


def test_a_transfer_behind_another_comes_after_it() -> None:
    job = Graph(
        "behind",
        (
            Operation("late", OperationKind.TRANSFER, ("x",), size_bytes=1),
            Operation("x", OperationKind.COMPUTE, ("early",), 1.0),
            Operation("early", OperationKind.TRANSFER, size_bytes=9),
            Operation("other", OperationKind.TRANSFER, size_bytes=9),
            Operation("y", OperationKind.COMPUTE, ("late",), 9.0),
            Operation("z", OperationKind.COMPUTE, ("other",), 2.0),
        ),
    )
    order = list(tao(job, ONE_BYTE_A_SECOND))
    assert order.index("early") < order.index("late")
    assert sorted(order) == ["early", "late", "other"]


def test_a_transfer_that_nothing_waits_for_gets_no_number() -> None:
    job = Graph("sends", (*FIGURE_2.operations, Operation("send", OperationKind.TRANSFER, ("op2",), size_bytes=7)))
    assert list(tao(job, ONE_BYTE_A_SECOND)) == ["recv1", "recv2"]
    assert set(tio(job)) == {"recv1", "recv2"}


def every_order_s(job: Graph) -> list[float]:
    names = [operation.name for operation in received(job)]
    worker = Worker(job, ONE_BYTE_A_SECOND)
    return [worker.makespan_s({n: i for i, n in enumerate(order)}) for order in itertools.permutations(names)]


def layered(seed: int, transfers: int, computing: int) -> Graph:
    """Return a graph like a model's: operations read one or two of the last four, and each parameter has one reader."""
    random = np.random.default_rng(seed)
    readers = random.integers(computing, size=transfers)
    operations = [
        Operation(f"r{i}", OperationKind.TRANSFER, size_bytes=int(size))
        for i, size in enumerate(random.integers(1, 10, size=transfers))
    ]
    for place in range(computing):
        before = {f"o{max(0, place - int(back))}" for back in random.integers(1, 5, size=2)} if place else set()
        inputs = (*sorted(before), *(f"r{i}" for i in range(transfers) if readers[i] == place))
        operations.append(Operation(f"o{place}", OperationKind.COMPUTE, inputs, float(random.integers(0, 10))))
    return Graph(f"layered-{seed}", tuple(operations))


def test_tao_against_every_order_of_small_models() -> None:
    ratios, chance = [], []
    for seed in range(60):
        job = layered(seed, transfers=5, computing=10)
        makespans = every_order_s(job)
        best = min(makespans)
        ratios.append(Worker(job, ONE_BYTE_A_SECOND).makespan_s(tao(job, ONE_BYTE_A_SECOND)) / best)
        chance.append(float(np.mean(makespans)) / best)
    assert min(ratios) >= 1.0
    assert sum(ratio == 1.0 for ratio in ratios) >= 0.8 * len(ratios)
    assert max(ratios) < 1.25
    assert np.mean(ratios) - 1 < 0.2 * (np.mean(chance) - 1), "a random order loses at least five times as much"


# ---- TIO


@pytest.mark.parametrize(
    ("job", "numbers"),
    [
        (CASE_2, {"a": 0, "b": 0, "c": 2, "d": 3}),
        # Equals share a number, whatever their times.
        (FIGURE_2, {"recv1": 0, "recv2": 0}),
        (
            graph({"recv2": 900, "recv1": 1}, {"op1": (0.0, "recv1"), "op2": (50.0, "op1 recv2")}),
            {"recv1": 0, "recv2": 0},
        ),
        # A transfer without impending communication comes last.
        (graph({"alone": 1, "a": 1, "b": 1}, {"x": (1.0, "alone"), "y": (1.0, "a b")}), {"a": 0, "b": 0, "alone": 2}),
    ],
)
def test_tio_by_hand(job: Graph, numbers: dict[str, int]) -> None:
    assert tio(job) == numbers


# ---- oracles


def test_oracles_by_hand() -> None:
    assert [general_time(operation) for operation in FIGURE_2.operations] == [1.0, 1.0, 0.0, 0.0], "Eq. 6"
    oracle = graph_time(Network(2.0, overhead_s=0.25))
    assert (oracle(FIGURE_2["recv2"]), oracle(FIGURE_2["op2"])) == (1.75, 5.0)


def test_an_operation_with_an_impossible_time_is_named() -> None:
    with pytest.raises(UserError, match="graph 'test': operation 'recv2': the time oracle gives -1"):
        tao(FIGURE_2, lambda operation: -1.0)


# ---- makespan, efficiency, speedup


def test_equations_1_to_4_by_hand() -> None:
    bounds = Worker(FIGURE_2, ONE_BYTE_A_SECOND).bounds()
    assert bounds == Bounds(sequential_s=14.0, parallel_s=9.0)
    assert bounds.speedup == pytest.approx(5 / 9)
    assert bounds.efficiency(14.0) == 0.0
    assert bounds.efficiency(9.0) == 1.0
    assert bounds.efficiency(11.0) == pytest.approx(0.6)


def test_every_order_is_perfect_if_nothing_can_overlap() -> None:
    alone = Worker(graph({}, {"x": (2.0, "")}), ONE_BYTE_A_SECOND)
    assert alone.bounds().efficiency(alone.makespan_s()) == 1.0
    assert alone.bounds().speedup == 0.0
    assert Worker(graph({}, {"x": (0.0, "")}), ONE_BYTE_A_SECOND).bounds().speedup == 0.0


def test_sending_does_not_delay_receiving() -> None:
    job = Graph(
        "duplex",
        (
            Operation("in1", OperationKind.TRANSFER, size_bytes=1),
            Operation("in2", OperationKind.TRANSFER, size_bytes=4),
            Operation("x", OperationKind.COMPUTE, ("in1",), 1.0),
            Operation("out", OperationKind.TRANSFER, ("x",), size_bytes=6),
            Operation("y", OperationKind.COMPUTE, ("in2",), 1.0),
        ),
    )
    worker = Worker(job, ONE_BYTE_A_SECOND)
    assert worker.makespan_s({"in1": 0, "in2": 1}) == 1 + 1 + 6
    assert worker.bounds() == Bounds(13.0, 6.0)


def test_par_32_and_seq_32_behave_as_in_the_paper() -> None:
    flat, chain = (
        Worker(made(32, size_bytes=1, time_s=1.0), ONE_BYTE_A_SECOND) for made in (flat_graph, sequential_graph)
    )
    assert flat.bounds().speedup == chain.bounds().speedup == 1.0
    random = np.random.default_rng(7)
    assert {flat.makespan_s(random=random) for _ in range(20)} == {33.0}, "all orders are the best"
    forward = {f"parameter.{i}": i for i in range(32)}
    backward = {name: -place for name, place in forward.items()}
    assert chain.makespan_s(forward) == 33.0
    assert chain.makespan_s(backward) == 64.0
    assert chain.bounds().efficiency(chain.makespan_s(backward)) == 0.0
    assert chain.bounds().efficiency(chain.makespan_s(forward)) == pytest.approx(31 / 32)


def longest_path_s(job: Graph) -> float:
    ends: dict[str, float] = {}
    for operation in job.operations:
        begins = max((ends[name] for name in operation.inputs), default=0.0)
        ends[operation.name] = begins + ONE_BYTE_A_SECOND(operation)
    return max(ends.values())


@given(graphs(), st.integers(0, 3))
def test_no_order_leaves_the_bounds(job: Graph, seed: int) -> None:
    worker = Worker(job, ONE_BYTE_A_SECOND)
    bounds = worker.bounds()
    for made in (worker.makespan_s(), worker.makespan_s(random=np.random.default_rng(seed))):
        assert max(bounds.parallel_s, longest_path_s(job)) <= made <= bounds.sequential_s
        assert bounds.efficiency(made) <= 1.0


def test_without_an_order_transfers_go_in_random_order() -> None:
    worker = Worker(sequential_graph(8, size_bytes=1, time_s=1.0), ONE_BYTE_A_SECOND)
    random = np.random.default_rng(1)
    assert len({worker.makespan_s(random=random) for _ in range(50)}) > 4
    same = [worker.makespan_s(random=np.random.default_rng(1)) for _ in range(2)]
    assert same[0] == same[1]
    ordered = tao(worker.graph, ONE_BYTE_A_SECOND)
    assert {worker.makespan_s(ordered, random) for _ in range(50)} == {9.0}
