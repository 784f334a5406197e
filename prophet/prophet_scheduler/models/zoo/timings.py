"""Published computing times of single GPUs: forward and backward seconds per batch.

Rule of this file: reading timings.yaml, which has each number with its source, and deriving times that were not
published. `Timing.derived` says how a time was derived. This project measured none of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from prophet_scheduler.core.errors import UserError

MEASURED = "forward and backward as published"
BY_CONVENTION = "from a rate of samples; a third of the time is forward, two thirds backward"
"""For each product in forward, backward has two: one for the input's gradient and one for the weights'."""
FAST_NETWORK = "from a distributed job's rate on its fastest network, so no less than computing; a third is forward"
REFERENCE_MODEL = "resnet50"
"""Model with a published time on every device. Times of other models are derived by their ratio to it."""


@dataclass(frozen=True)
class Timing:
    """Seconds that `device` takes for a batch of `batch_size` samples. `derived` says how they were obtained."""

    model: str
    device: str
    batch_size: int
    forward_s: float
    backward_s: float
    derived: str
    source: str

    @property
    def samples_per_s(self) -> float:
        return self.batch_size / (self.forward_s + self.backward_s)


@functools.cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tables


def devices() -> tuple[str, ...]:
    """Return the names of the devices with published times."""
    return tuple(_tables()["similar"])


@functools.cache
def published() -> tuple[Timing, ...]:
    """Return all published timings, in the order of the file."""
    return (*_from_milliseconds(), *_from_rates())


def _from_milliseconds() -> Iterator[Timing]:
    for row in _tables()["milliseconds"]:
        for model, (forward_ms, backward_ms) in row["models"].items():
            seconds = forward_ms / 1000, backward_ms / 1000
            yield Timing(model, row["device"], row["batch_size"], *seconds, MEASURED, row["source"])


def _from_rates() -> Iterator[Timing]:
    for row in _tables()["samples_per_s"]:
        derived = FAST_NETWORK if row.get("fast_network") else BY_CONVENTION
        for model, rate in row["models"].items():
            whole_s = row["batch_size"] / rate
            seconds = whole_s / 3, whole_s * 2 / 3
            yield Timing(model, row["device"], row["batch_size"], *seconds, derived, row["source"])


def timing(model: str, device: str, batch_size: int) -> Timing:
    """Return the time of a batch on `device`: published, or derived.

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
        if there is None or reference_there is None or reference is None:
            continue
        ratio = reference_there.samples_per_s / there.samples_per_s
        return Timing(
            model,
            device,
            batch_size,
            reference.forward_s * ratio,
            reference.backward_s * ratio,
            f"ResNet-50's time on {device} ({reference.derived}), times {ratio:.3f}, their ratio on {other}",
            f"{reference.source}; {there.source}",
        )
    raise UserError(f"{model} has no published timing to carry over to {device}; give backward_s and forward_s")


def _nearest(model: str, device: str, batch_size: int) -> Timing | None:
    """Return the timing at the nearest published batch size, scaled to `batch_size`."""
    known = [each for each in published() if (each.model, each.device) == (model, device)]
    if not known:
        return None
    best = min(known, key=lambda each: (abs(math.log(each.batch_size / batch_size)), -each.batch_size))
    if best.batch_size == batch_size:
        return best
    by = batch_size / best.batch_size
    derived = f"{best.derived}; scaled from a batch of {best.batch_size}"
    forward_s, backward_s = best.forward_s * by, best.backward_s * by
    return replace(best, batch_size=batch_size, forward_s=forward_s, backward_s=backward_s, derived=derived)
