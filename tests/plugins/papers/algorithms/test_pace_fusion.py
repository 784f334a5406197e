"""Balanced fusion: the paper's recursion as printed, every contiguous partition, and every R."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from prophet_papers.algorithms.pace.fusion import Chain, balanced_fusion, balanced_partitions, best_fusion
from prophet_papers.algorithms.pace.problem import problem_of
from prophet_papers.algorithms.pace.schedule import iteration_time, preemptive_schedule
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind, training_graph
from prophet_scheduler.core.network import Network
from support.profiles import profile

NETWORK = Network(bandwidth=100.0, overhead_s=0.5)
Member = TypeVar("Member")


def least_time(graph: Graph, network: Network) -> float:
    problem = problem_of(graph, network.transfer_s)
    return iteration_time(problem, preemptive_schedule(problem))


def max_min_size(chain: tuple[int, ...], groups: int) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """Algorithm 1, lines 11-23, line by line. (Line 22 adds the prefix behind the rest; here it is in front.)"""
    if groups == 1:
        return sum(chain), (chain,)
    if groups > len(chain):
        return -math.inf, ()
    best: float = 0
    best_groups: tuple[tuple[int, ...], ...] = ()
    for length in range(1, len(chain) + 1):
        rest, rest_groups = max_min_size(chain[length:], groups - 1)
        size = min(sum(chain[:length]), rest)
        if best < size:
            best, best_groups = size, (chain[:length], *rest_groups)
    return best, best_groups


def cuts(length: int, groups: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to cut a chain into this number of groups, as the places at which they begin."""
    for inner in itertools.combinations(range(1, length), groups - 1):
        yield (0, *inner)


def parts(chain: Sequence[Member], starts: Sequence[int]) -> tuple[tuple[Member, ...], ...]:
    return tuple(tuple(chain[s:e]) for s, e in zip(starts, [*starts[1:], len(chain)], strict=True))


sizes = st.lists(st.integers(1, 12) | st.integers(1, 10**12), min_size=1, max_size=8)


@given(sizes)
def test_partitions_are_the_papers_and_none_is_more_balanced(chain: list[int]) -> None:
    partitions = list(balanced_partitions(chain))
    assert len(partitions) == len(chain)
    for groups, partition in enumerate(partitions, start=1):
        least, as_written = max_min_size(tuple(chain), groups)
        assert parts(chain, partition) == as_written
        assert least == max(min(map(sum, parts(chain, starts))) for starts in cuts(len(chain), groups))


def test_partitions_by_hand() -> None:
    two, three = list(balanced_partitions([4, 1, 1, 5, 3]))[1:3]
    assert two == (0, 3)
    assert three == (0, 1, 4), "equally good is (0, 3, 4); the first group is shorter"


@pytest.mark.parametrize("chain", [[], [3, 0]])
def test_nothing_to_fuse_is_refused(chain: list[int]) -> None:
    with pytest.raises(UserError, match="at least one transfer"):
        next(balanced_partitions(chain))


# ---- the fused graph


def branches() -> Graph:
    """Transfers r, s, t; s is needed by both branches."""
    compute, transfer = OperationKind.COMPUTE, OperationKind.TRANSFER
    return Graph(
        "branches",
        (
            Operation("b2", compute, (), 1.0),
            Operation("b1", compute, ("b2",), 1.0),
            Operation("b0", compute, ("b1",), 1.0),
            Operation("r", transfer, ("b2",), size_bytes=50),
            Operation("s", transfer, ("b1",), size_bytes=70),
            Operation("t", transfer, ("b0", "b2"), size_bytes=90),
            Operation("left", compute, ("t", "s"), 2.0),
            Operation("right", compute, ("s", "r"), 7.0),
            Operation("end", compute, ("left", "right"), 1.0),
        ),
    )


def fuse_graph(graph: Graph, groups: Sequence[Sequence[str]]) -> Graph:
    """The graph with one transfer a group, which waits for what its members wait for, and for which what waited for
    them waits (Algorithm 1, line 5).
    """
    group_of = {member: "+".join(group) for group in groups for member in group}
    fused: dict[str, Operation] = {}
    for operation in graph.operations:
        name = group_of.get(operation.name, operation.name)
        known = fused.get(name, replace(operation, name=name, inputs=(), size_bytes=0))
        inputs = dict.fromkeys((*known.inputs, *(group_of.get(each, each) for each in operation.inputs)))
        size = known.size_bytes + operation.size_bytes
        fused[name] = replace(known, inputs=tuple(inputs), size_bytes=size)
    return Graph(graph.name, tuple(fused.values()))


def test_the_fused_problem_equals_that_of_the_fused_graph() -> None:
    for network in (NETWORK, Network(1000.0, 2.0), Network(10.0)):
        fusion = balanced_fusion(branches(), network)
        fused = fuse_graph(branches(), fusion.groups)
        transfers = problem_of(fused, network.transfer_s).transfers
        assert sorted(fusion.problem.transfers, key=lambda t: t.name) == sorted(transfers, key=lambda t: t.name)
        assert fusion.iteration_s == pytest.approx(least_time(fused, network))


# ---- the search over R


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Draw a graph with a sequential backward pass and any forward pass, so that tails may rise and fall."""
    count = draw(st.integers(1, 6))
    operations = []
    for index in reversed(range(count)):
        before = (f"b{index + 1}",) if index + 1 < count else ()
        operations.append(Operation(f"b{index}", OperationKind.COMPUTE, before, draw(st.integers(0, 3)) / 2))
        size = draw(st.integers(1, 200))
        operations.append(Operation(f"t{index}", OperationKind.TRANSFER, (f"b{index}",), size_bytes=size))
    names = [f"t{index}" for index in range(count)]
    for index in range(draw(st.integers(1, 5))):
        inputs = tuple(draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)))
        operations.append(Operation(f"f{index}", OperationKind.COMPUTE, inputs, draw(st.integers(0, 6)) / 2))
        names.append(f"f{index}")
    return Graph("random", tuple(operations))


networks = st.builds(Network, st.sampled_from([20.0, 100.0, 1e6]), st.sampled_from([0.0, 0.1, 0.5, 2.0]))


@given(graphs(), networks)
def test_no_number_of_groups_is_better(graph: Graph, network: Network) -> None:
    """Algorithm 1, lines 1-10, as written: every R, through the fused graph."""
    problem = problem_of(graph, network.transfer_s)
    chain = [t.name for t in sorted(problem.transfers, key=lambda t: (t.release, t.tail))]
    times = []
    for partition in balanced_partitions([graph[name].size_bytes for name in chain]):
        groups = parts(chain, partition)
        times.append(least_time(fuse_graph(graph, groups), network))
    fusion = balanced_fusion(graph, network)
    assert fusion.iteration_s == pytest.approx(min(times))
    assert times[len(fusion.groups) - 1] == pytest.approx(min(times))
    assert fusion.iteration_s == iteration_time(fusion.problem, fusion.segments)
    assert [name for group in fusion.groups for name in group] == chain


def test_skipping_numbers_of_groups_never_makes_fusion_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prophet_papers.algorithms.pace.fusion.EVERY_UP_TO", 2)
    job, free = branches(), Network(50.0)
    assert not Chain(job, free).rises
    assert balanced_fusion(job, free).iteration_s == pytest.approx(least_time(job, free))
    assert len(balanced_fusion(job, Network(50.0, 100.0)).groups) == 1


@pytest.mark.parametrize(
    ("rows", "network", "groups"),
    [
        # An expensive message fuses everything, and a free one nothing that would wait.
        ([(100, 3.0, 1.0), (100, 2.0, 1.0), (100, 1.0, 1.0), (100, 0.0, 1.0)], Network(100.0, 50.0), 1),
        ([(100, 3.0, 1.0), (100, 2.0, 1.0), (100, 1.0, 1.0), (100, 0.0, 1.0)], Network(100.0, 0.0), 4),
        # All are ready at once: of equally good numbers of groups, the smallest.
        ([(10, 1.0, 1.0)] * 3, Network(1e15), 1),
    ],
)
def test_number_of_groups_by_hand(rows: list[tuple[int, float, float]], network: Network, groups: int) -> None:
    assert len(balanced_fusion(training_graph(profile(*rows)), network).groups) == groups


# ---- past the paper: the best of all contiguous partitions


def best_of_all(graph: Graph, network: Network) -> float:
    chain = sorted(problem_of(graph, network.transfer_s).transfers, key=lambda t: (t.release, t.tail))
    names = [transfer.name for transfer in chain]
    return min(
        least_time(fuse_graph(graph, parts(names, starts)), network)
        for groups in range(1, len(names) + 1)
        for starts in cuts(len(names), groups)
    )


rows = st.tuples(st.integers(1, 12) | st.integers(100, 400), st.integers(0, 5).map(float), st.integers(0, 3).map(float))


@given(st.lists(rows, min_size=1, max_size=6), networks)
def test_for_layers_no_contiguous_groups_are_better(rows: list[tuple[int, float, float]], network: Network) -> None:
    job = training_graph(profile(*sorted(rows, key=lambda row: -row[1])))
    best = best_fusion(job, network)
    assert best.iteration_s == pytest.approx(best_of_all(job, network))
    assert best.iteration_s <= balanced_fusion(job, network).iteration_s * (1 + 1e-9)
    assert sum(map(len, best.groups)) == len(rows)


def test_balance_can_cost_more_than_a_tenth() -> None:
    rows = [
        (294, 5.0, 0.0),
        (1, 5.0, 0.0),
        (118, 4.0, 1.0),
        (4, 2.0, 1.0),
        (175, 1.0, 2.0),
        (18, 0.0, 2.0),
        (9, 0.0, 1.0),
    ]
    job, network = training_graph(profile(*rows)), Network(100.0, 2.0)
    best = best_fusion(job, network)
    assert best.iteration_s == pytest.approx(18.13) == best_of_all(job, network)
    assert [len(group) for group in best.groups] == [1, 3, 3]
    assert balanced_fusion(job, network).iteration_s == pytest.approx(20.13)


def test_how_often_balance_is_not_best() -> None:
    """The numbers in docs/policies/pace.md."""
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(500):
        times = [(int(10 ** rng.uniform(0, 3)), float(rng.integers(0, 6)), float(rng.integers(0, 3))) for _ in range(7)]
        job = training_graph(profile(*sorted(times, key=lambda row: -row[1])))
        network = Network(100.0, float(rng.choice([0.1, 0.5, 1.0, 2.0])))
        ratios.append(balanced_fusion(job, network).iteration_s / best_fusion(job, network).iteration_s)
    assert min(ratios) >= 1 - 1e-9
    assert np.mean(np.array(ratios) > 1 + 1e-9) == pytest.approx(0.42, abs=0.01)
    assert np.mean(ratios) == pytest.approx(1.011, abs=0.001)
    assert max(ratios) == pytest.approx(1.12, abs=0.01)


def test_without_rising_tails_the_best_is_the_papers() -> None:
    assert best_fusion(branches(), NETWORK) == balanced_fusion(branches(), NETWORK)
