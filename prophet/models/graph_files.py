"""Computation graphs on disk: their JSON form.

Rule of this file: reading and writing; what a graph may be is checked by prophet/core/graph.py. Times are seconds,
sizes bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prophet.core.errors import UserError
from prophet.core.files import write_whole
from prophet.core.graph import Graph, Operation, OperationKind

GRAPH_SCHEMA = 1


def save_graph(graph: Graph, path: Path) -> None:
    """Writes `graph` as JSON, whole or not at all."""
    record = {
        "schema": GRAPH_SCHEMA,
        "name": graph.name,
        "operations": [
            {"name": o.name, "kind": o.kind.value, "inputs": list(o.inputs), "time_s": o.time_s, "bytes": o.size_bytes}
            for o in graph.operations
        ],
    }
    write_whole(json.dumps(record, indent=1) + "\n", path)


def load_graph(path: Path) -> Graph:
    """Reads a graph. Raises UserError naming the file, the key and what to do."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such graph file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: is not JSON ({error})") from None
    if not isinstance(record, dict) or record.get("schema") != GRAPH_SCHEMA:
        raise UserError(f"{path}: must be a mapping with 'schema': {GRAPH_SCHEMA}, 'name' and 'operations'")
    if not isinstance(record.get("operations"), list):
        raise UserError(f"{path}: 'operations' must be a list")
    parsed = tuple(_operation(f"{path}: operations[{i}]", item) for i, item in enumerate(record["operations"]))
    try:
        return Graph(str(record.get("name", path.stem)), parsed)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _operation(where: str, item: Any) -> Operation:
    if not isinstance(item, dict):
        raise UserError(f"{where} must be a mapping with the keys name, kind, inputs, time_s, bytes")
    unknown = sorted(set(item) - {"name", "kind", "inputs", "time_s", "bytes"})
    if unknown:
        raise UserError(f"{where}: unknown key '{unknown[0]}'; known are name, kind, inputs, time_s, bytes")
    name, kind, inputs = item.get("name"), item.get("kind"), item.get("inputs", [])
    if not isinstance(name, str):
        raise UserError(f"{where}: 'name' is {name!r}; it must be text")
    if kind not in list(OperationKind):
        raise UserError(f"{where}: 'kind' is {kind!r}; known are {', '.join(OperationKind)}")
    if not isinstance(inputs, list) or not all(isinstance(name, str) for name in inputs):
        raise UserError(f"{where}: 'inputs' is {inputs!r}; it must be a list of names")
    time_s, size = item.get("time_s", 0.0), item.get("bytes", 0)
    if isinstance(time_s, bool) or not isinstance(time_s, int | float):
        raise UserError(f"{where}: 'time_s' is {time_s!r}; it must be a number of seconds")
    if isinstance(size, bool) or not isinstance(size, int):
        raise UserError(f"{where}: 'bytes' is {size!r}; it must be a whole number")
    return Operation(name, OperationKind(kind), tuple(inputs), float(time_s), size)
