"""The policies TicTac-TIO and TicTac-TAO: plans of profiles and of graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prophet_papers.tictac import TicTac, forward_graph
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.core.network import Network
from prophet_scheduler.core.plan import Plan, QueuePlan
from prophet_scheduler.core.profile import GradientProfile, Profile
from support.graphs import graph

PROFILE = Profile(
    "three",
    (
        GradientProfile("a", 100, 0.3, 0.1),
        GradientProfile("b", 500, 0.2, 0.2),
        GradientProfile("c", 200, 0.1, 0.0),
    ),
    ids=(7, 8, 9),
)
BRANCHES = graph(
    {"a": 100, "b": 500, "c": 200},
    {"x": (0.1, "a"), "left": (0.1, "x b"), "right": (0.5, "x c"), "join": (0.1, "left right")},
)
NETWORK = Network(1000.0)


@pytest.mark.parametrize("timing_aware", [True, False])
def test_without_a_profile_one_slice_goes_at_a_time(timing_aware: bool) -> None:
    policy = TicTac(timing_aware=timing_aware)
    assert policy.plan(None, None) == Plan(
        push=QueuePlan(order={}, credit=1), pull=QueuePlan(order={}), policy=policy.name
    )


def test_a_profile_is_a_chain_and_the_credit_its_largest_gradient() -> None:
    made = forward_graph(PROFILE)
    assert [(o.name, o.inputs, o.time_s) for o in made.computing] == [
        ("forward.0", ("transfer.0",), 0.1),
        ("forward.1", ("forward.0", "transfer.1"), 0.2),
        ("forward.2", ("forward.1", "transfer.2"), 0.0),
    ]
    assert [(o.name, o.size_bytes) for o in made.transfers] == [
        (f"transfer.{i}", s) for i, s in enumerate((100, 500, 200))
    ]
    order = {7: 0, 8: 1, 9: 2}
    assert TicTac().plan(PROFILE, NETWORK) == Plan(
        push=QueuePlan(order=order, credit=500), pull=QueuePlan(order=order), policy="tictac"
    )


@pytest.mark.parametrize(("timing_aware", "network"), [(True, None), (False, NETWORK)])
def test_without_times_or_a_network_the_order_is_that_of_tio(timing_aware: bool, network: Network | None) -> None:
    assert TicTac(timing_aware=timing_aware).plan(PROFILE, network).push.order == {7: 0, 8: 0, 9: 2}


@pytest.mark.parametrize("names", [("a", "b", "c"), ("gradient0", "gradient1", "gradient2")])
def test_a_graph_decides_and_its_transfers_are_matched_by_name_or_by_place(names: tuple[str, ...]) -> None:
    """The branch that computes longer goes first."""
    rows = zip(names, PROFILE.gradients, strict=True)
    learned = Profile("learned", tuple(replace(gradient, name=name) for name, gradient in rows), ids=(7, 8, 9))
    assert TicTac(BRANCHES).plan(learned, NETWORK).push.order == {7: 0, 9: 1, 8: 2}


def test_a_parameter_that_no_operation_reads_is_last() -> None:
    unread = graph({"a": 100, "b": 500, "c": 200}, {"x": (0.1, "b c")})
    assert (TicTac(unread).plan(PROFILE, NETWORK).push.order or {})[7] == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (graph({"a": 100}, {"x": (0.1, "a")}), "1 transfers for 3 gradients, and their names differ"),
        (graph({"a": 100, "b": 5, "c": 200}, {"x": (0.1, "a")}), "transfer 'b' has 5 bytes, gradient 'b' 500"),
        (graph({"p": 100, "q": 200, "r": 500}, {"x": (0.1, "p")}), "transfer 'q' has 200 bytes, gradient 'b' 500"),
    ],
)
def test_the_graph_of_another_model_is_refused(wrong: Graph, message: str) -> None:
    with pytest.raises(UserError, match=f"graph 'test', profile 'three': {message}"):
        TicTac(wrong).plan(PROFILE, NETWORK)
