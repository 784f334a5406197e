"""TicTac's table: what E and S are of the models for which that is known beforehand, and that a batch is balanced."""

from __future__ import annotations

import dataclasses
import sys

import pytest

from prophet_papers.algorithms.tictac.ordering import graph_time
from prophet_papers.algorithms.tictac.worker import flat_graph, sequential_graph
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph, Operation, OperationKind
from support.golden import Golden
from tools.papers import NETWORK, Order, balanced, forward_orders, judge, training_orders

LAYER_S = (2 << 20) / NETWORK.bandwidth


@pytest.fixture(scope="module")
def inference() -> list[Order]:
    pytest.importorskip("mxnet")
    return forward_orders()


def test_order_is_worth_nothing_where_layers_are_side_by_side() -> None:
    judged = judge("par", flat_graph(time_s=LAYER_S))
    assert judged.speedup == pytest.approx(1.0)
    assert judged.gain == 0.0
    assert judged.chance == judged.tio == judged.tao == pytest.approx(31 / 32)


def test_order_is_worth_most_where_layers_follow_one_another() -> None:
    judged = judge("seq", sequential_graph(time_s=LAYER_S))
    assert judged.tao == pytest.approx(31 / 32)
    assert judged.chance < 0.4
    assert judged.gain > 0.5
    assert judge("seq", sequential_graph(time_s=LAYER_S)) == judged, "the same seed gives the same numbers"


def test_the_rate_balances_computing_with_receiving() -> None:
    def make(rate: float) -> Graph:
        sizes = (1_000_000, 4_000_000)
        received = [Operation(f"p{n}", OperationKind.TRANSFER, size_bytes=size) for n, size in enumerate(sizes)]
        computed = [Operation(f"f{n}", OperationKind.COMPUTE, (f"p{n}",), 1e9 / rate) for n in range(len(sizes))]
        return Graph("two", (*received, *computed))

    oracle, graph = graph_time(NETWORK), make(balanced(make))
    assert sum(oracle(o) for o in graph.computing) == pytest.approx(sum(oracle(o) for o in graph.transfers))


def test_the_models_of_the_paper(inference: list[Order]) -> None:
    for judged in inference:
        assert judged.speedup > 0.9, "what the paper chose its batch sizes for"
        assert judged.tao > 0.95 and judged.tio > 0.95
        assert judged.chance <= judged.tao


def test_no_number_of_a_toy_has_moved(golden: Golden) -> None:
    toys = [judge("par", flat_graph(time_s=LAYER_S)), judge("seq", sequential_graph(time_s=LAYER_S))]
    golden.check("papers/tictac-toys", [dataclasses.asdict(order) for order in toys])


def test_no_number_of_a_model_has_moved(inference: list[Order], golden: Golden) -> None:
    golden.check("papers/tictac-inference", [dataclasses.asdict(order) for order in inference])
    golden.check("papers/tictac-training", [dataclasses.asdict(order) for order in training_orders()])


def test_without_mxnet_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", None)
    with pytest.raises(UserError, match=r"mxnet is not installed; `pip install mxnet=="):
        forward_orders()
