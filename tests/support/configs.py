"""Small experiments for the tests of this folder, as files and as values."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from prophet_scheduler.lab.config import Experiment, load_experiment

REPLAY: dict[str, Any] = {
    "name": "small",
    "repeats": 2,
    "time_limit_s": 30,
    "job": {
        "kind": "replay",
        "total_bytes": "25.6MB",
        "backward_s": 0.6,
        "forward_s": 0.3,
        "batch_size": 10,
        "iterations": 6,
        "warmup": 2,
    },
    "cluster": {"workers": 2, "servers": 1, "bandwidth": "250mbit"},
    "policies": ["stock", "prophet"],
}
DIGITS: dict[str, Any] = {
    **REPLAY,
    "job": {"kind": "digits", "batch_size": 10, "iterations": 6, "warmup": 2, "target_accuracy": 0.9},
}


def changed(raw: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return `raw` with the value at a dotted key replaced; None takes the key out."""
    result = copy.deepcopy(raw)
    *way, last = key.split(".")
    place = result
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return result


def written(raw: Any, folder: Path) -> Path:
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return path


def loaded(raw: dict[str, Any], folder: Path, **options: Any) -> Experiment:
    return load_experiment(written(raw, folder), **options)
