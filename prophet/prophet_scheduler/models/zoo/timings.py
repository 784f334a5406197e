"""Published computing times of single GPUs: forward and backward seconds per batch.

Rule of this file: reading timings.yaml, which has each number with its source, and deriving times that were not
published. This project measured none of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from prophet_scheduler.core.errors import UserError

REFERENCE_MODEL = "resnet50"
"""Model with a published time on every device. Times of other models are derived by their ratio to it."""


@functools.cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tables


@functools.cache
def published() -> Mapping[tuple[str, str], Mapping[int, tuple[float, float]]]:
    """Return forward and backward seconds of a batch by (model, device) and the number of its samples.

    Of a published rate of samples, a third of the time is forward and two thirds are backward: for each product in
    forward, backward has one for the input's gradient and one for the weights'.
    """
    times: dict[tuple[str, str], dict[int, tuple[float, float]]] = {}
    for row in _tables()["milliseconds"]:
        for model, (forward_ms, backward_ms) in row["models"].items():
            times.setdefault((model, row["device"]), {})[row["batch_size"]] = forward_ms / 1000, backward_ms / 1000
    for row in _tables()["samples_per_s"]:
        for model, rate in row["models"].items():
            whole_s = row["batch_size"] / rate
            times.setdefault((model, row["device"]), {})[row["batch_size"]] = whole_s / 3, whole_s * 2 / 3
    return times


def timing(model: str, device: str, batch_size: int) -> tuple[float, float]:
    """Return the forward and backward seconds of a batch on `device`: published, or derived.

    Other batch sizes have the sample rate of the nearest published batch size (by ratio; of two, the larger one). A
    model without a time on the device has ResNet-50's time there, times the ratio of the two models on the most similar
    device with times of both. Raises UserError if there is none.
    """
    similar = _tables()["similar"]
    if device not in similar:
        raise UserError(f"device {device!r} has no published timings; known are {', '.join(similar)}")
    if batch_size < 1:
        raise UserError(f"batch_size is {batch_size}; it must be at least 1")
    if (own := _nearest(model, device, batch_size)) is not None:
        return own
    reference = _nearest(REFERENCE_MODEL, device, batch_size)
    for other in similar[device]:
        there, reference_there = _nearest(model, other, batch_size), _nearest(REFERENCE_MODEL, other, batch_size)
        if there is not None and reference_there is not None and reference is not None:
            ratio = (batch_size / sum(reference_there)) / (batch_size / sum(there))
            return reference[0] * ratio, reference[1] * ratio
    raise UserError(f"{model} has no published timing to carry over to {device}; give backward_s and forward_s")


def _nearest(model: str, device: str, batch_size: int) -> tuple[float, float] | None:
    """Return the times at the nearest published batch size, scaled to `batch_size`."""
    known = published().get((model, device))
    if known is None:
        return None
    best = min(known, key=lambda size: (abs(math.log(size / batch_size)), -size))
    forward_s, backward_s = known[best]
    by = batch_size / best
    return forward_s * by, backward_s * by
