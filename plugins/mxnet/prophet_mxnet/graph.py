"""A graph from an MXNet symbol.

Rule of this file: from the JSON of `symbol.tojson()` and `net.export()` to steps and parameters; graph_patterns.py
makes the iteration from these. The JSON is enough: MXNet is used only to infer shapes, if a Symbol is passed.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.files import parse_json
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
    inputs: Collection[str] = ("data",),
    pattern: Pattern = Pattern.RECEIVE,
    flops_per_s: float | None = None,
    times_s: Mapping[str, float] | None = None,
    name: str = "symbol",
) -> Graph:
    """Return the graph of `symbol`: an mxnet Symbol, or its JSON text.

    `inputs` are the variables with data. These do not travel, nor do variables called `*label`. Every other variable is
    a parameter, except the running averages of batch normalization. For a Symbol, `shapes` has the data's shapes. For
    JSON text it also has the shape of each parameter (unless `__shape__` gives it) and of each operation's result
    (unless `times_s` covers the operation), as `NODE_output`, the name from `symbol.get_internals()`.

    Computing is called `forward.NODE` (and `backward.NODE`), and a transfer has its parameter's name. The work of a
    convolution or dense layer follows from weight and result; others do one operation for each number of the result.

    Raises UserError for an invalid symbol, for a missing or unknown shape, and as `worker_graph` does.
    """
    if not isinstance(symbol, str):
        shapes = _inferred(symbol, shapes, name)
        symbol = symbol.tojson()
    nodes = _nodes(symbol, name)
    known = {key: tuple(int(length) for length in shape) for key, shape in shapes.items()}
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
            products, others = 0.0, 0.0
            if flops_per_s is not None and not _timed(node["name"], pattern, times_s or {}):
                products, others = _work(node, [nodes[index] for index in sources], known, name)
            steps.append(
                ForwardStep(
                    node["name"],
                    tuple(dict.fromkeys(nodes[index]["name"] for index in sources if index in computing)),
                    tuple(dict.fromkeys(parameters[index] for index in sources if index in parameters)),
                    products,
                    others,
                )
            )
            computing.add(place)
        elif node["name"] not in inputs and not node["name"].endswith("label") and place not in auxiliary:
            parameters[place] = node["name"]
            numbers = math.prod(_shape(node, known, name))
            sizes[node["name"]] = numbers * _number_bytes(node, name)
    return worker_graph(name, steps, sizes, pattern=pattern, flops_per_s=flops_per_s, times_s=times_s)


def _timed(node: str, pattern: Pattern, times_s: Mapping[str, float]) -> bool:
    """Return True if a node's times are given, so that its work does not matter."""
    return f"forward.{node}" in times_s and (pattern is Pattern.RECEIVE or f"backward.{node}" in times_s)


def _nodes(text: str, name: str) -> list[dict[str, Any]]:
    where = f"symbol {name!r}"
    try:
        record = parse_json(text)
    except ValueError as error:
        raise UserError(f"{where}: is not JSON ({error})") from None
    nodes = record.get("nodes") if isinstance(record, dict) else None
    if not isinstance(nodes, list) or not nodes:
        raise UserError(f"{where}: has no 'nodes'; give what symbol.tojson() returns")
    for place, node in enumerate(nodes):
        if not isinstance(node, dict) or not isinstance(node.get("op"), str) or not isinstance(node.get("name"), str):
            raise UserError(f"{where}: nodes[{place}] must be a mapping with 'op', 'name' and 'inputs'")
        inputs = node.get("inputs")
        if not isinstance(inputs, list) or not all(
            isinstance(entry, list) and entry and isinstance(entry[0], int) and 0 <= entry[0] < place
            for entry in inputs
        ):
            raise UserError(
                f"{where}: nodes[{place}] ({node['name']}): 'inputs' must be lists that begin with an earlier node"
            )
    return nodes


def _attributes(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a node's attributes, from `attrs`; MXNet before 1.0 wrote `attr` and `param`."""
    mappings = [node.get(key) for key in ("param", "attr", "attrs")]
    return {key: value for mapping in mappings if isinstance(mapping, dict) for key, value in mapping.items()}


def _shape(node: Mapping[str, Any], shapes: Mapping[str, Shape], name: str) -> Shape:
    """Return the shape of a variable, as given or from its `__shape__`."""
    if node["name"] in shapes:
        return shapes[node["name"]]
    try:
        shape = ast.literal_eval(str(_attributes(node).get("__shape__")))
    except (ValueError, SyntaxError):
        shape = None
    # Gluon writes 0, or with NumPy shapes -1, for a length that it does not know yet.
    if not isinstance(shape, tuple) or not all(isinstance(length, int) and length > 0 for length in shape):
        raise UserError(f"symbol {name!r}: the shape of {node['name']!r} is unknown; give it in 'shapes'")
    return shape


def _number_bytes(node: Mapping[str, Any], name: str) -> int:
    """Return the bytes per number of a variable, by its `__dtype__`; float32 if it has none."""
    flag = str(_attributes(node).get("__dtype__", 0))
    if not flag.isdecimal() or int(flag) not in NUMBER_BYTES:
        raise UserError(f"symbol {name!r}: '__dtype__' of {node['name']!r} is {flag}; known are {[*NUMBER_BYTES]}")
    return NUMBER_BYTES[int(flag)]


def _work(
    node: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]], shapes: Mapping[str, Shape], name: str
) -> tuple[float, float]:
    """Return the floating-point operations (of products, of everything else)."""
    results = _results(node["name"], shapes)
    if not results:
        raise UserError(
            f"symbol {name!r}: the shape of '{node['name']}_output' is unknown; give it in 'shapes', "
            f"or the time of 'forward.{node['name']}' in 'times_s'"
        )
    numbers = sum(math.prod(shape) for shape in results)
    if node["op"] in ("Convolution", "Convolution_v1", "FullyConnected"):
        # Each number of the result is a product with one row of the weight: (outputs, dimensions of a row ...).
        return 2.0 * numbers * math.prod(_shape(inputs[1], shapes, name)[1:]), 0.0
    if node["op"] == "Deconvolution":
        # Each number of the input is multiplied by its part of the weight: (inputs, outputs / groups, kernel ...).
        source = inputs[0]
        read = [_shape(source, shapes, name)] if source["op"] == "null" else _results(source["name"], shapes)
        if not read:
            raise UserError(f"symbol {name!r}: the shape of '{source['name']}_output' is unknown; give it in 'shapes'")
        return 2.0 * math.prod(read[0]) * math.prod(_shape(inputs[1], shapes, name)[1:]), 0.0
    return 0.0, float(numbers)


def _results(node: str, shapes: Mapping[str, Shape]) -> list[Shape]:
    """Return the shapes of a node's results: NODE_output, or NODE_output0, NODE_output1, ..."""
    if f"{node}_output" in shapes:
        return [shapes[f"{node}_output"]]
    numbered = itertools.takewhile(shapes.__contains__, (f"{node}_output{place}" for place in itertools.count()))
    return [shapes[key] for key in numbered]


def _inferred(symbol: Any, shapes: Mapping[str, Sequence[int]], name: str) -> dict[str, Shape]:
    """Return the shapes of all variables and results, as MXNet infers them."""
    internals = symbol.get_internals()
    try:
        _, results, _ = internals.infer_shape(**{key: tuple(shape) for key, shape in shapes.items()})
    except Exception as error:  # MXNetError, which cannot be named without importing mxnet
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"symbol {name!r}: its shapes cannot be inferred from 'shapes' ({line})") from error
    if results is None:
        raise UserError(f"symbol {name!r}: its shapes cannot be inferred; give those of all data in 'shapes'")
    return dict(zip(internals.list_outputs(), (tuple(shape) for shape in results), strict=True))
