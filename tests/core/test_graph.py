"""Graphs: what is checked, and in which order operations are kept."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind, training_graph
from prophet_scheduler.core.profile import GradientProfile, Profile

COMPUTE, TRANSFER = OperationKind.COMPUTE, OperationKind.TRANSFER


def compute(name: str, *inputs: str, time_s: float = 1.0) -> Operation:
    return Operation(name, COMPUTE, inputs, time_s)


def transfer(name: str, *inputs: str, size: int = 1) -> Operation:
    return Operation(name, TRANSFER, inputs, size_bytes=size)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Random graphs whose operations are given in a random order."""
    operations: list[Operation] = []
    for place in range(draw(st.integers(1, 8))):
        inputs = tuple(name for name in (o.name for o in operations) if draw(st.booleans()))
        if draw(st.booleans()):
            operations.append(Operation(f"o{place}", COMPUTE, inputs, draw(st.floats(0, 10))))
        else:
            operations.append(Operation(f"o{place}", TRANSFER, inputs, size_bytes=draw(st.integers(1, 10**9))))
    return Graph("random", tuple(draw(st.permutations(operations))))


@given(graphs())
def test_inputs_come_first_and_nothing_is_lost(graph: Graph) -> None:
    place = {operation.name: index for index, operation in enumerate(graph.operations)}
    assert len(place) == len(graph.operations)
    for operation in graph.operations:
        assert graph[operation.name] is operation
        assert all(place[name] < place[operation.name] for name in operation.inputs)
    assert sorted([*graph.transfers, *graph.computing], key=lambda o: o.name) == sorted(
        graph.operations, key=lambda o: o.name
    )


@given(graphs())
def test_who_waits_is_the_inverse_of_what_is_waited_for(graph: Graph) -> None:
    users = graph.successors()
    assert set(users) == {operation.name for operation in graph.operations}
    pairs = {(name, user) for name, waiting in users.items() for user in waiting}
    assert pairs == {(name, operation.name) for operation in graph.operations for name in operation.inputs}


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ((), "'operations' is empty"),
        ((compute("a"), compute("a")), "'a' is defined twice"),
        ((compute("a", "b"),), "'a': its input 'b' is not an operation"),
        ((compute("a", time_s=-1.0),), "'a': 'time_s' is -1.0"),
        ((compute("a", time_s=math.nan),), "'a': 'time_s' is nan"),
        ((compute("a", time_s=math.inf),), "'a': 'time_s' is inf"),
        ((transfer("a", size=0),), "'a': 'size_bytes' is 0; a transfer has more than 0 bytes"),
        ((Operation("a", COMPUTE, size_bytes=-1),), "'a': 'size_bytes' is -1"),
    ],
)
def test_what_cannot_be_a_graph_is_refused_with_the_name(operations: tuple[Operation, ...], message: str) -> None:
    with pytest.raises(UserError, match=f"graph 'bad': .*{message}"):
        Graph("bad", operations)


@pytest.mark.parametrize(
    ("operations", "cycle"),
    [
        ((compute("a", "a"),), "a -> a"),
        ((compute("a", "c"), compute("b", "a"), compute("c", "b")), "a -> b -> c -> a"),
        # Neither what leads to a cycle nor what follows it is part of it.
        ((compute("after", "c"), compute("a", "c", "first"), compute("c", "a"), transfer("first")), "a -> c -> a"),
    ],
)
def test_a_cycle_is_told_in_the_direction_of_the_data(operations: tuple[Operation, ...], cycle: str) -> None:
    with pytest.raises(UserError) as caught:
        Graph("bad", operations)
    assert str(caught.value) == f"graph 'bad': has a cycle: {cycle}"


def test_an_input_named_twice_is_one_input() -> None:
    graph = Graph("twice", (compute("b", "a", "a"), compute("a")))
    assert [operation.name for operation in graph.operations] == ["a", "b"]


def test_a_profile_is_backward_then_transfers_then_forward() -> None:
    profile = Profile("two", (GradientProfile("g0", 10, 0.5, 0.1), GradientProfile("g1", 20, 0.2, 0.3)))
    graph = training_graph(profile)
    assert [(o.name, o.inputs) for o in graph.computing] == [
        ("backward.1", ()),
        ("backward.0", ("backward.1",)),
        ("forward.0", ("backward.0", "transfer.0")),
        ("forward.1", ("forward.0", "transfer.1")),
    ]
    assert [o.time_s for o in graph.computing] == pytest.approx([0.2, 0.3, 0.1, 0.3])
    assert {(o.name, o.inputs, o.size_bytes) for o in graph.transfers} == {
        ("transfer.1", ("backward.1",), 20),
        ("transfer.0", ("backward.0",), 10),
    }
