"""Tests of the worker's iteration that is made from a forward pass, without a framework."""

from __future__ import annotations

import math

import pytest

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Operation, OperationKind
from prophet_scheduler.models.graph_patterns import ForwardStep, Pattern, worker_graph

STEPS = (
    ForwardStep("first", (), ("p",), product_flops=10.0),
    ForwardStep("left", ("first",), (), product_flops=3.0),
    ForwardStep("right", ("first",), ("q", "empty"), other_flops=5.0),
    ForwardStep("join", ("left", "right"), (), product_flops=7.0),
)
SIZES = {"q": 20, "p": 10, "empty": 0, "unread": 5}


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_rate_is_refused(rate: float) -> None:
    with pytest.raises(UserError, match=r"'flops_per_s' is .*; it must be above 0"):
        worker_graph("g", STEPS, SIZES, flops_per_s=rate)


def test_transfers_come_in_the_order_of_the_sizes_without_empty_and_unread_ones() -> None:
    graph = worker_graph("g", STEPS, SIZES, flops_per_s=1.0)
    assert [(o.name, o.size_bytes) for o in graph.transfers] == [("q", 20), ("p", 10)]


def test_a_model_without_parameters_only_computes() -> None:
    bare = (ForwardStep("a", other_flops=1.0), ForwardStep("b", ("a",), other_flops=1.0))
    for pattern in Pattern:
        graph = worker_graph("g", bare, {}, flops_per_s=1.0, pattern=pattern)
        assert [(o.name, o.kind) for o in graph.operations] == [
            ("forward.a", OperationKind.COMPUTE),
            ("forward.b", OperationKind.COMPUTE),
        ]


def test_a_worker_by_hand() -> None:
    graph = worker_graph("g", STEPS, SIZES, flops_per_s=1.0, pattern=Pattern.WORKER)
    compute, transfer = OperationKind.COMPUTE, OperationKind.TRANSFER
    assert set(graph.operations) == {
        Operation("q", transfer, (), size_bytes=20),
        Operation("p", transfer, (), size_bytes=10),
        Operation("forward.first", compute, ("p",), 10.0),
        Operation("forward.left", compute, ("forward.first",), 3.0),
        Operation("forward.right", compute, ("forward.first", "q"), 5.0),
        Operation("forward.join", compute, ("forward.left", "forward.right"), 7.0),
        Operation("backward.join", compute, ("forward.join",), 14.0),
        Operation("backward.right", compute, ("backward.join", "forward.right"), 5.0),
        Operation("backward.left", compute, ("backward.join", "forward.left"), 3.0),
        Operation("backward.first", compute, ("backward.left", "backward.right", "forward.first"), 10.0),
        Operation("gradient.q", transfer, ("backward.right",), size_bytes=20),
        Operation("gradient.p", transfer, ("backward.first",), size_bytes=10),
    }
