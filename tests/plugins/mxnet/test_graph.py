"""Graphs from the JSON of an MXNet symbol; with MXNet itself only where it is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prophet_mxnet.graph import graph_of_symbol
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_patterns import Pattern


def node(op: str, name: str, *inputs: int, **attributes: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"op": op, "name": name, "inputs": [[source, 0, 0] for source in inputs]}
    return {**fields, "attrs": attributes} if attributes else fields


def text(*nodes: dict[str, Any]) -> str:
    return json.dumps({"nodes": list(nodes), "arg_nodes": [], "heads": [[len(nodes) - 1, 0, 0]], "attrs": {}})


# What symbol.tojson() writes of a convolution with batch normalization, a shortcut and a classifier.
NET = text(
    node("null", "data"),
    node("null", "conv0_weight", __shape__="(4, 3, 3, 3)", __dtype__="0"),
    node("Convolution", "conv0", 0, 1, kernel="(3, 3)", no_bias="True", num_filter="4", pad="(1, 1)"),
    node("null", "bn0_gamma"),
    node("null", "bn0_beta"),
    node("null", "bn0_moving_mean", __init__='["zero", {}]'),
    node("null", "bn0_moving_var", __init__='["one", {}]'),
    node("BatchNorm", "bn0", 2, 3, 4, 5, 6, fix_gamma="False"),
    node("elemwise_add", "plus0", 2, 7),
    node("null", "fc0_weight", __dtype__="2"),
    node("null", "fc0_bias", __dtype__="2"),
    node("FullyConnected", "fc0", 8, 9, 10, num_hidden="10"),
    node("null", "softmax_label"),
    node("SoftmaxOutput", "softmax", 11, 12),
)
SHAPES = {
    "data": (2, 3, 8, 8),
    "bn0_gamma": (4,),
    "bn0_beta": (4,),
    "fc0_weight": (10, 256),
    "fc0_bias": (10,),
    "conv0_output": (2, 4, 8, 8),
    "bn0_output": (2, 4, 8, 8),
    "plus0_output": (2, 4, 8, 8),
    "fc0_output": (2, 10),
    "softmax_output": (2, 10),
}


def inputs_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {operation.name: operation.inputs for operation in graph.operations}


def test_variables_that_are_no_data_labels_or_running_averages_are_parameters() -> None:
    graph = graph_of_symbol(NET, SHAPES, flops_per_s=1.0, name="net")
    assert [(o.name, o.size_bytes) for o in graph.transfers] == [
        ("conv0_weight", 4 * 3 * 3 * 3 * 4),  # from its own __shape__
        ("bn0_gamma", 16),
        ("bn0_beta", 16),
        ("fc0_weight", 5120),  # float16
        ("fc0_bias", 20),
    ]
    assert inputs_of(graph) == {
        **{o.name: () for o in graph.transfers},
        "forward.conv0": ("conv0_weight",),
        "forward.bn0": ("forward.conv0", "bn0_gamma", "bn0_beta"),
        "forward.plus0": ("forward.conv0", "forward.bn0"),
        "forward.fc0": ("forward.plus0", "fc0_weight", "fc0_bias"),
        "forward.softmax": ("forward.fc0",),
    }


def test_work_follows_from_weight_and_result() -> None:
    graph = graph_of_symbol(NET, SHAPES, flops_per_s=2.0)
    assert {o.name: o.time_s * 2.0 for o in graph.computing} == {
        "forward.conv0": 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3),
        "forward.bn0": 2 * 4 * 8 * 8,
        "forward.plus0": 2 * 4 * 8 * 8,
        "forward.fc0": 2 * (2 * 10) * 256,
        "forward.softmax": 2 * 10,
    }


def test_a_workers_pattern_is_that_of_any_model() -> None:
    worker = graph_of_symbol(NET, SHAPES, flops_per_s=1.0, pattern=Pattern.WORKER)
    assert inputs_of(worker)["backward.conv0"] == ("backward.bn0", "backward.plus0", "forward.conv0")
    assert inputs_of(worker)["gradient.fc0_bias"] == ("backward.fc0",)


def test_a_grouped_and_a_transposed_convolution() -> None:
    net = text(
        node("null", "image"),
        node("null", "w"),
        node("Convolution", "grouped", 0, 1, num_group="2"),
        node("null", "v"),
        node("Deconvolution", "up", 2, 3),
    )
    shapes = {"image": (1, 4, 6, 6), "w": (8, 2, 1, 1), "v": (8, 5, 2, 2)}
    shapes |= {"grouped_output": (1, 8, 6, 6), "up_output": (1, 5, 12, 12)}
    graph = graph_of_symbol(net, shapes, inputs=("image",), flops_per_s=1.0)
    assert graph["forward.grouped"].time_s == 2 * (8 * 36) * 2
    assert graph["forward.up"].time_s == 2 * (8 * 36) * (5 * 4)


def test_several_results_count_together() -> None:
    net = text(node("null", "data"), node("SliceChannel", "split", 0, num_outputs="2"))
    graph = graph_of_symbol(net, {"split_output0": (3, 2), "split_output1": (3, 2)}, flops_per_s=1.0)
    assert graph["forward.split"].time_s == 12


def test_measured_times_need_no_shapes_of_results() -> None:
    parameters = {key: shape for key, shape in SHAPES.items() if not key.endswith("_output")}
    names = ("conv0", "bn0", "plus0", "fc0", "softmax")
    times = {f"forward.{name}": 0.5 for name in names}
    assert {o.time_s for o in graph_of_symbol(NET, parameters, times_s=times).computing} == {0.5}
    assert {o.time_s for o in graph_of_symbol(NET, parameters, times_s=times, flops_per_s=1.0).computing} == {0.5}


def test_a_file_of_an_older_version() -> None:
    weight = {"op": "null", "param": {}, "name": "w", "attr": {"__shape__": "(3, 2)", "__dtype__": "1"}, "inputs": []}
    dense = {"op": "FullyConnected", "param": {"num_hidden": "3"}, "name": "fc", "inputs": [[0, 0], [1, 0]]}
    net = text(node("null", "data"), weight, dense)
    assert graph_of_symbol(net, {"fc_output": (1, 3)}, flops_per_s=1.0)["w"].size_bytes == 48


DATA = node("null", "data")


@pytest.mark.parametrize(
    ("symbol", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "has no 'nodes'"),
        ('{"nodes": []}', "has no 'nodes'"),
        (text({"op": "null"}), r"nodes\[0\] must be a mapping with 'op', 'name' and 'inputs'"),
        (text(DATA, {"op": "relu", "name": "r"}), r"nodes\[1\] \(r\): 'inputs' must be lists"),
        (text(DATA, node("relu", "r", 1)), r"nodes\[1\] \(r\): 'inputs' must be lists that begin with an earlier node"),
        (text(DATA, node("relu", "r", 0)), "the shape of 'r_output' is unknown; give it in 'shapes', or the time of"),
        (text(DATA, node("null", "w")), "the shape of 'w' is unknown; give it in 'shapes'"),
        (text(DATA, node("null", "w", __shape__="(0, 3)")), "the shape of 'w' is unknown"),
        (text(DATA, node("null", "w", __shape__="(3")), "the shape of 'w' is unknown"),
        (text(DATA, node("null", "w", __shape__="(3,)", __dtype__="99")), "'__dtype__' of 'w' is 99; known are"),
    ],
)
def test_what_is_no_symbol_is_said_in_one_line(symbol: str, message: str) -> None:
    with pytest.raises(UserError, match=f"symbol 'bad': .*{message}") as caught:
        graph_of_symbol(symbol, {"data": (1, 3)}, flops_per_s=1.0, name="bad")
    assert "\n" not in str(caught.value)


class Fake:
    """Stand-in with what is used of an mxnet Symbol."""

    def __init__(self, shapes: dict[str, tuple[int, ...]] | None) -> None:
        self.shapes = shapes
        self.asked: dict[str, tuple[int, ...]] = {}

    def tojson(self) -> str:
        return NET

    def get_internals(self) -> Fake:
        return self

    def list_outputs(self) -> list[str]:
        return list(self.shapes or ())

    def infer_shape(self, **known: tuple[int, ...]) -> tuple[None, list[tuple[int, ...]] | None, None]:
        if "data" not in known:
            raise ValueError("unknown argument\nwith a long trace")
        self.asked = known
        return None, list(self.shapes.values()) if self.shapes else None, None


def test_of_a_symbol_mxnet_infers_the_shapes() -> None:
    symbol = Fake({key: tuple(shape) for key, shape in SHAPES.items()})
    assert graph_of_symbol(symbol, {"data": [2, 3, 8, 8]}, flops_per_s=1.0) == graph_of_symbol(
        NET, SHAPES, flops_per_s=1.0
    )
    assert symbol.asked == {"data": (2, 3, 8, 8)}


def test_shapes_that_mxnet_cannot_infer() -> None:
    with pytest.raises(UserError, match=r"cannot be inferred from 'shapes' \(unknown argument\)"):
        graph_of_symbol(Fake({}), {"image": (1,)}, flops_per_s=1.0)
    with pytest.raises(UserError, match="cannot be inferred; give those of all data"):
        graph_of_symbol(Fake(None), {"data": (1,)}, flops_per_s=1.0)


def test_a_real_symbol() -> None:
    mx = pytest.importorskip("mxnet")
    data = mx.sym.var("data")
    hidden = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=8, name="fc0"), act_type="relu", name="relu0")
    shortcut = mx.sym.FullyConnected(data, num_hidden=2, name="skip")
    net = mx.sym.FullyConnected(hidden, num_hidden=2, name="fc1") + shortcut
    graph = graph_of_symbol(net, {"data": (5, 3)}, flops_per_s=1.0)
    assert {o.name: o.size_bytes for o in graph.transfers} == {
        "fc0_weight": 96,
        "fc0_bias": 32,
        "fc1_weight": 64,
        "fc1_bias": 8,
        "skip_weight": 24,
        "skip_bias": 8,
    }
    assert graph["forward.fc0"].time_s == 2 * 5 * 8 * 3
