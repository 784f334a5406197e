"""A graph from an MXNet symbol.

Rule of this file: from a symbol to steps and parameters; prophet_scheduler/models/graph_patterns.py makes the iteration
from these.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.graph import Graph
from prophet_scheduler.models.graph_patterns import ForwardStep, Pattern, worker_graph

Shape = tuple[int, ...]

NUMBER_BYTES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 12: 2}
"""Bytes per number by MXNet's type flag: float32, float64, float16, uint8, int32, int8, int64; 12 is bfloat16."""

AUXILIARY_FROM = {"BatchNorm": 3, "BatchNorm_v1": 3, "SyncBatchNorm": 3, "_contrib_SyncBatchNorm": 3}
"""Operators whose inputs from this index on are running averages: kept by the worker, never sent."""


def graph_of_symbol(
    symbol: Any,
    shapes: Mapping[str, Sequence[int]],
    *,
    flops_per_s: float,
    pattern: Pattern = Pattern.RECEIVE,
    name: str = "symbol",
) -> Graph:
    """Return the graph of an mxnet Symbol. `shapes` has the shape of each variable with data.

    Data does not travel, nor do variables called `*label`. Every other variable is a parameter, except the running
    averages of batch normalization. Computing is called `forward.NODE` (and `backward.NODE`), and a transfer has its
    parameter's name. The work of a convolution or dense layer follows from weight and result; others do one operation
    for each number of the result.

    Raises UserError if MXNet cannot infer all shapes, and as `worker_graph` does.
    """
    known = _inferred(symbol, shapes, name)
    nodes = json.loads(symbol.tojson())["nodes"]
    auxiliary: set[int] = set()
    for node in nodes:
        first = AUXILIARY_FROM.get(node["op"])
        if first is not None:
            auxiliary.update(index for index, *_ in node["inputs"][first:])
    parameters: dict[int, str] = {}
    computing: set[int] = set()
    sizes: dict[str, int] = {}
    steps: list[ForwardStep] = []
    for place, node in enumerate(nodes):
        sources = [index for index, *_ in node["inputs"]]
        if node["op"] != "null":
            steps.append(
                ForwardStep(
                    node["name"],
                    tuple(dict.fromkeys(nodes[index]["name"] for index in sources if index in computing)),
                    tuple(dict.fromkeys(parameters[index] for index in sources if index in parameters)),
                    *_work(node, [nodes[index] for index in sources], known),
                )
            )
            computing.add(place)
        elif node["name"] not in shapes and not node["name"].endswith("label") and place not in auxiliary:
            parameters[place] = node["name"]
            flag = int(node.get("attrs", {}).get("__dtype__", 0))
            sizes[node["name"]] = math.prod(known[node["name"]]) * NUMBER_BYTES[flag]
    return worker_graph(name, steps, sizes, pattern=pattern, flops_per_s=flops_per_s)


def _inferred(symbol: Any, shapes: Mapping[str, Sequence[int]], name: str) -> dict[str, Shape]:
    """Return the shapes of all variables and results, as MXNet infers them."""
    internals = symbol.get_internals()
    try:
        _, results, _ = internals.infer_shape(**{key: tuple(shape) for key, shape in shapes.items()})
    except Exception as error:  # MXNetError, which cannot be named without importing mxnet
        line = str(error).strip().partition("\n")[0] or type(error).__name__
        raise UserError(f"symbol {name!r}: its shapes cannot be inferred from 'shapes' ({line})") from error
    if results is None:
        raise UserError(f"symbol {name!r}: its shapes cannot be inferred; give those of all data in 'shapes'")
    return dict(zip(internals.list_outputs(), (tuple(shape) for shape in results), strict=True))


def _work(
    node: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], shapes: Mapping[str, Shape]
) -> tuple[float, float]:
    """Return the floating-point operations (of products, of everything else)."""
    numbers = sum(math.prod(shape) for shape in _results(node, shapes))
    if node["op"] in ("Convolution", "Convolution_v1", "FullyConnected"):
        # Each number of the result is a product with one row of the weight: (outputs, dimensions of a row ...).
        return 2.0 * numbers * math.prod(shapes[inputs[1]["name"]][1:]), 0.0
    if node["op"] == "Deconvolution":
        # Each number of the input is multiplied by its part of the weight: (inputs, outputs / groups, kernel ...).
        (read, *_) = _results(inputs[0], shapes)
        return 2.0 * math.prod(read) * math.prod(shapes[inputs[1]["name"]][1:]), 0.0
    return 0.0, float(numbers)


def _results(node: Mapping[str, Any], shapes: Mapping[str, Shape]) -> list[Shape]:
    """Return the shapes of a node's results, called NODE_output, or NODE_output0, NODE_output1, ..."""
    name = node["name"]
    if node["op"] == "null":
        return [shapes[name]]
    if f"{name}_output" in shapes:
        return [shapes[f"{name}_output"]]
    numbered = itertools.takewhile(shapes.__contains__, (f"{name}_output{place}" for place in itertools.count()))
    return [shapes[key] for key in numbered]
