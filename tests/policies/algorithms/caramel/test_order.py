"""Caramel's order by hand, against its text and against every execution: its enforcement, and the windows it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from prophet.core.errors import UserError
from prophet.core.graph import Graph, Operation, OperationKind, training_graph
from prophet.core.profile import GradientProfile, Profile
from prophet.models.profiles import resnet50
from prophet.policies.algorithms.caramel import (
    Window,
    Windows,
    activations,
    best_order,
    control_dependencies,
    enforce,
    windows_of_graph,
    windows_of_profile,
)


def graph(computing: Mapping[str, tuple[float, str]], transfers: Mapping[str, str]) -> Graph:
    """`computing`: seconds, and the inputs as one text. `transfers`: the inputs."""
    return Graph(
        "test",
        (
            *(Operation(n, OperationKind.COMPUTE, tuple(i.split()), t) for n, (t, i) in computing.items()),
            *(Operation(n, OperationKind.TRANSFER, tuple(i.split()), size_bytes=1) for n, i in transfers.items()),
        ),
    )


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> Graph:
    """Computing that waits for some of what came before it, and transfers that wait for some of that."""
    count = draw(st.integers(2, most))
    names = [f"c{i}" for i in range(count)]
    computing = {
        name: (float(draw(st.integers(1, 4))), " ".join(draw(st.sets(st.sampled_from(names[:i] or [""]), max_size=2))))
        for i, name in enumerate(names)
    }
    transfers = {
        f"t{i}": " ".join(draw(st.sets(st.sampled_from(names), min_size=1, max_size=3)))
        for i in range(draw(st.integers(1, 4)))
    }
    return graph(computing, transfers)


def executions(given_graph: Graph) -> Iterator[tuple[str, ...]]:
    """Every order in which one processor could do the computing."""
    computing = given_graph.computing

    def extend(done: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if len(done) == len(computing):
            yield done
        for operation in computing:
            if operation.name not in done and set(operation.inputs) <= set(done):
                yield from extend((*done, operation.name))

    yield from extend(())


def ready_times(given_graph: Graph, execution: Sequence[str]) -> dict[str, float]:
    """When each transfer becomes ready; transfers of these graphs wait for computing only."""
    now, ends = 0.0, {}
    for name in execution:
        now += given_graph[name].time_s
        ends[name] = now
    return {transfer.name: max(ends[name] for name in transfer.inputs) for transfer in given_graph.transfers}


# ---- the best order


# Two branches after a: b (2 s) gives t1; c (1 s), then d (3 s) give t2 and, with e (1 s), t3.
BRANCHES = graph(
    {"a": (1.0, ""), "b": (2.0, "a"), "c": (1.0, "a"), "d": (3.0, "c"), "e": (1.0, "d")},
    {"t3": "e", "t2": "d", "t1": "b", "t0": "c"},
)


def test_the_order_by_hand() -> None:
    # From nothing: t0 costs a+c = 2, t1 a+b = 3. Then t1 costs b = 2, t2 d = 3; then t2 3, t3 4; then t3 1.
    assert best_order(BRANCHES) == ("t0", "t1", "t2", "t3")
    assert [(a.computed, a.time_s) for a in activations(BRANCHES)] == [
        (("a", "c"), 2.0),
        (("b",), 4.0),
        (("d",), 7.0),
        (("e",), 8.0),
    ]


def test_what_is_on_the_way_goes_first_even_if_it_costs_the_same() -> None:
    zero = graph({"a": (1.0, ""), "z": (0.0, "a")}, {"late": "z", "early": "a"})
    assert best_order(zero) == ("early", "late")


def test_a_chain_is_ready_from_its_end_to_its_start() -> None:
    profile = Profile("p", tuple(GradientProfile(f"g{i}", 1, 3.0 - i, 0.5) for i in range(3)))
    assert best_order(training_graph(profile)) == ("transfer.2", "transfer.1", "transfer.0")


def test_a_tenth_of_a_second_three_times_ties_with_three_tenths() -> None:
    tenths = graph({"a": (0.1, ""), "b": (0.1, "a"), "c": (0.1, "b"), "d": (0.3, "")}, {"one": "d", "three": "c"})
    assert best_order(tenths) == ("one", "three"), "equal cost, fewer operations"


def greedy_by_the_text(given_graph: Graph) -> list[float]:
    """Section 4.1 with sets of names: the cost of each step."""

    def closure(name: str) -> set[str]:
        inputs = given_graph[name].inputs
        return set(inputs).union(*(closure(one) for one in inputs))

    left = {transfer.name: closure(transfer.name) for transfer in given_graph.transfers}
    done: set[str] = set()
    costs = []
    while left:
        cost = {name: sum(given_graph[one].time_s for one in needs - done) for name, needs in left.items()}
        chosen = min(left, key=lambda name: (cost[name], len(left[name] - done), list(left).index(name)))
        costs.append(cost[chosen])
        done |= left.pop(chosen)
    return costs


@given(graphs())
def test_the_order_is_the_papers_greedy(given_graph: Graph) -> None:
    found = activations(given_graph)
    assert np.diff([0.0, *(a.time_s for a in found)]) == pytest.approx(greedy_by_the_text(given_graph))
    assert found[0].time_s == min(min(ready_times(given_graph, e).values()) for e in executions(given_graph))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_of_parameters_that_share_nothing_no_order_has_an_earlier_mean(costs: list[int]) -> None:
    apart = graph({f"c{i}": (float(c), "") for i, c in enumerate(costs)}, {f"t{i}": f"c{i}" for i in range(len(costs))})
    best = min(sum(itertools.accumulate(order)) for order in itertools.permutations(costs))
    assert sum(a.time_s for a in activations(apart)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (("t0", "t1", "t2"), "must have each of the 4 transfers once; look at 't3'"),
        (("t0", "t1", "t2", "t3", "t3"), "must have each of the 4 transfers once; look at 't3'"),
        (("t0", "t1", "t2", "a"), "look at 'a'"),
    ],
)
def test_an_order_of_something_else(order: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        activations(BRANCHES, order)


def test_a_transfer_goes_after_the_transfer_that_it_waits_for() -> None:
    chained = graph({"a": (1.0, ""), "b": (0.0, "first")}, {"second": "b", "first": "a"})
    assert best_order(chained) == ("first", "second")
    with pytest.raises(UserError, match="'second' waits for 'first'; put it after that"):
        enforce(chained, ("second", "first"))


# ---- its enforcement


def test_the_dependencies_by_hand() -> None:
    # The end sets are {c}, {b}, {d}; the free sets after them {b}, {d}, {e}, of which e waits for d already.
    assert control_dependencies(BRANCHES) == {"b": ("c",), "d": ("b",)}
    assert list(executions(enforce(BRANCHES))) == [("a", "c", "b", "d", "e")]
    # Turned round, nothing of b may start before e has ended, and c waits for a already.
    assert control_dependencies(BRANCHES, ("t3", "t2", "t0", "t1")) == {"b": ("e",)}


def test_an_operation_that_no_parameter_needs_comes_last() -> None:
    metric = graph({"a": (1.0, ""), "b": (1.0, "a"), "metric": (9.0, "")}, {"t1": "b", "t0": "a"})
    assert control_dependencies(metric) == {"metric": ("b",)}


def test_the_next_forward_pass_gets_nothing_more_to_wait_for() -> None:
    assert control_dependencies(training_graph(resnet50(25_600_000))) == {}


@settings(deadline=None, max_examples=60)
@given(graphs(6))
def test_every_execution_is_the_best_one_and_no_dependency_is_spare(given_graph: Graph) -> None:
    enforced = enforce(given_graph)
    best = {a.transfer: a.time_s for a in activations(given_graph)}
    allowed = set(executions(given_graph))
    for execution in executions(enforced):
        assert execution in allowed, "what was there to wait for is kept"
        assert ready_times(given_graph, execution) == best
    added = control_dependencies(given_graph)
    for name, more in added.items():
        for one in more:
            fewer = {**added, name: tuple(other for other in more if other != one)}
            weaker = Graph(
                "weaker", tuple(replace(o, inputs=(*o.inputs, *fewer.get(o.name, ()))) for o in given_graph.operations)
            )
            assert any(ready_times(weaker, execution) != best for execution in executions(weaker)), (name, one)


@given(graphs(), st.randoms(use_true_random=False))
def test_any_order_can_be_enforced(given_graph: Graph, random: Random) -> None:
    order = [transfer.name for transfer in given_graph.transfers]
    random.shuffle(order)
    times = {a.transfer: a.time_s for a in activations(given_graph, order)}
    execution = next(executions(enforce(given_graph, order)))
    # A parameter that is ready on the way to an earlier one of the order may be ready sooner.
    assert all(t <= times[name] for name, t in ready_times(given_graph, execution).items())


# ---- windows


def test_windows_by_hand() -> None:
    profile = Profile("p", (GradientProfile("a", 1, 3.0, 0.5), GradientProfile("b", 2, 1.0, 0.25)))
    windows = windows_of_profile(profile)
    assert windows == Windows((Window("b", 2, 1.0, 0.5), Window("a", 1, 3.0, 0.0)), 3.0, 0.75)
    assert [windows.length_s(w) for w in windows.parameters] == [2.5, 0.0]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=8))
def test_a_profile_and_its_graph_have_the_same_windows(rows: list[tuple[int, int, int]]) -> None:
    rows.sort(key=lambda row: -row[1])
    profile = Profile("p", tuple(GradientProfile(f"g{i}", s, c / 8, f / 8) for i, (s, c, f) in enumerate(rows)))
    from_graph, from_profile = windows_of_graph(training_graph(profile)), windows_of_profile(profile)
    assert [w.name for w in from_graph.parameters] == [f"transfer.{i}" for i in reversed(range(len(rows)))]
    assert [replace(w, name="") for w in from_graph.parameters] == [
        replace(w, name="") for w in from_profile.parameters
    ]
    assert (from_graph.backward_s, from_graph.forward_s) == (from_profile.backward_s, from_profile.forward_s)


def test_a_parameter_that_nothing_reads_may_travel_until_the_end() -> None:
    assert windows_of_graph(graph({"b": (1.0, ""), "f": (2.0, "b t0")}, {"t0": "b", "t1": "b"})).parameters == (
        Window("t0", 1, 1.0, 0.0),
        Window("t1", 1, 1.0, 2.0),
    )


def test_a_graph_that_receives_before_it_computes_has_no_windows() -> None:
    with pytest.raises(
        UserError, match="'b' waits for transfer 'parameter' and transfers wait for it; give a graph of"
    ):
        windows_of_graph(graph({"b": (1.0, "parameter")}, {"parameter": "", "gradient": "b"}))
