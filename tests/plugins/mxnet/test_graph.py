"""Graphs of MXNet symbols."""

from __future__ import annotations

from typing import Any

import pytest

mx = pytest.importorskip("mxnet", exc_type=ImportError)

from prophet_mxnet.graph import graph_of_symbol
from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_patterns import Pattern

SHAPES = {"data": [2, 3, 8, 8]}


def net() -> Any:
    """Return a convolution with batch normalization, a shortcut, and a classifier in half precision."""
    conv = mx.sym.Convolution(mx.sym.var("data"), num_filter=4, kernel=(3, 3), pad=(1, 1), no_bias=True, name="conv0")
    plus = mx.sym.elemwise_add(conv, mx.sym.BatchNorm(conv, fix_gamma=False, name="bn0"), name="plus0")
    weight, bias = (mx.sym.var(f"fc0_{part}", dtype="float16") for part in ("weight", "bias"))
    dense = mx.sym.FullyConnected(plus, weight, bias, num_hidden=10, name="fc0")
    return mx.sym.SoftmaxOutput(dense, name="softmax")


def inputs_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {operation.name: operation.inputs for operation in graph.operations}


def test_variables_that_are_no_data_labels_or_running_averages_are_parameters() -> None:
    graph = graph_of_symbol(net(), SHAPES, flops_per_s=1.0)
    assert [(o.name, o.size_bytes) for o in graph.transfers] == [
        ("conv0_weight", 4 * 3 * 3 * 3 * 4),
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
    graph = graph_of_symbol(net(), SHAPES, flops_per_s=2.0)
    assert {o.name: o.time_s * 2.0 for o in graph.computing} == {
        "forward.conv0": 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3),
        "forward.bn0": 2 * 4 * 8 * 8,
        "forward.plus0": 2 * 4 * 8 * 8,
        "forward.fc0": 2 * (2 * 10) * 256,
        "forward.softmax": 2 * 10,
    }


def test_a_workers_pattern_is_that_of_any_model() -> None:
    worker = graph_of_symbol(net(), SHAPES, flops_per_s=1.0, pattern=Pattern.WORKER)
    assert inputs_of(worker)["backward.conv0"] == ("backward.bn0", "backward.plus0", "forward.conv0")
    assert inputs_of(worker)["gradient.fc0_bias"] == ("backward.fc0",)


def test_a_grouped_and_a_transposed_convolution() -> None:
    image = mx.sym.var("image")
    grouped = mx.sym.Convolution(image, num_filter=8, kernel=(1, 1), num_group=2, no_bias=True, name="grouped")
    up = {"num_filter": 5, "kernel": (2, 2), "stride": (2, 2), "no_bias": True}
    both = mx.sym.Deconvolution(grouped, name="up", **up), mx.sym.Deconvolution(image, name="first", **up)
    graph = graph_of_symbol(mx.sym.Group(both), {"image": (1, 4, 6, 6)}, flops_per_s=1.0)
    assert graph["forward.grouped"].time_s == 2 * (8 * 36) * 2
    assert graph["forward.up"].time_s == 2 * (8 * 36) * (5 * 4)
    assert graph["forward.first"].time_s == 2 * (4 * 36) * (5 * 4)


def test_several_results_count_together() -> None:
    split = mx.sym.SliceChannel(mx.sym.var("data"), num_outputs=2, name="split")
    assert graph_of_symbol(split, {"data": (3, 4)}, flops_per_s=1.0)["forward.split"].time_s == 12


def test_shapes_that_mxnet_cannot_infer_are_one_line() -> None:
    with pytest.raises(UserError, match=r"symbol 'bad': its shapes cannot be inferred from 'shapes' \(.+\)$") as caught:
        graph_of_symbol(net(), {"data": (2, 3)}, flops_per_s=1.0, name="bad")
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="cannot be inferred; give those of all data"):
        graph_of_symbol(net(), {}, flops_per_s=1.0)
