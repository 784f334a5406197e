"""Graphs: what is checked, in which order operations are kept, and the JSON form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from prophet.core.errors import UserError
from prophet.core.graph import Graph, Operation, OperationKind, training_graph
from prophet.core.profile import GradientProfile, Profile
from prophet.models.graph_files import load_graph, save_graph

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
        ((compute("a"), compute("a")), "'a' is there twice"),
        ((compute("a", "b"),), "'a': its input 'b' is no operation"),
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
        ((compute("after", "c"), compute("a", "c", "first"), compute("c", "a"), transfer("first")), "c -> a -> c"),
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


@given(graphs())
def test_json_gives_back_the_same_graph(tmp_path_factory: pytest.TempPathFactory, graph: Graph) -> None:
    path = tmp_path_factory.getbasetemp() / "graph.json"
    save_graph(graph, path)
    assert load_graph(path) == graph
    assert not path.with_name("graph.json.part").exists()


GOOD: dict[str, Any] = {
    "schema": 1,
    "name": "file",
    "operations": [
        {"name": "w", "kind": "transfer", "bytes": 8},
        {"name": "o", "kind": "compute", "inputs": ["w"], "time_s": 2},
    ],
}


def test_what_may_be_left_out_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps({key: value for key, value in GOOD.items() if key != "name"}))
    assert load_graph(path) == Graph("small", (transfer("w", size=8), compute("o", "w", time_s=2.0)))


def with_operation(**changed: Any) -> str:
    return json.dumps({**GOOD, "operations": [{**GOOD["operations"][0], **changed}]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must be a mapping with 'schema': 1"),
        (json.dumps({**GOOD, "schema": 2}), "must be a mapping with 'schema': 1"),
        (json.dumps({**GOOD, "operations": {}}), "'operations' must be a list"),
        (json.dumps({**GOOD, "operations": []}), "'operations' is empty"),
        (json.dumps({**GOOD, "operations": ["w"]}), r"operations\[0\] must be a mapping"),
        (with_operation(size=1), r"operations\[0\]: unknown key 'size'; known are name, kind, inputs, time_s, bytes"),
        (with_operation(name=3), r"operations\[0\]: 'name' is 3; it must be text"),
        (with_operation(kind="send"), r"operations\[0\]: 'kind' is 'send'; known are compute, transfer"),
        (with_operation(inputs="w"), r"operations\[0\]: 'inputs' is 'w'; it must be a list of names"),
        (with_operation(inputs=[1]), r"operations\[0\]: 'inputs' is \[1\]; it must be a list of names"),
        (with_operation(time_s="1"), r"operations\[0\]: 'time_s' is '1'; it must be a number"),
        (with_operation(time_s=True), r"operations\[0\]: 'time_s' is True; it must be a number"),
        (with_operation(time_s=math.nan), "'w': 'time_s' is nan"),
        (with_operation(bytes=1.5), r"operations\[0\]: 'bytes' is 1.5; it must be a whole number"),
        (with_operation(bytes=0), "'w': 'size_bytes' is 0"),
        (with_operation(inputs=["x"]), "'w': its input 'x' is no operation"),
    ],
)
def test_a_bad_file_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UserError, match=f"bad.json: .*{message}") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json: no such graph file"):
        load_graph(tmp_path / "none.json")
    with pytest.raises(UserError, match="cannot be read"):
        load_graph(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"bytes\.json: is not JSON"):
        load_graph(tmp_path / "bytes.json")
