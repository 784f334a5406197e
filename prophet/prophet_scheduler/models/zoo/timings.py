"""Published computing times of one GPU: forward and backward seconds of a batch.

Rule of this file: reading timings.yaml, which has each number with its source, and the two ways of deriving times that
were not published. `Timing.derived` names the way. This project measured none of them.
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
"""Backward has two products for each one of forward: for its input and for its weights."""
FAST_NETWORK = "from a distributed job's rate on its fastest network, so no less than computing; a third is forward"
REFERENCE_MODEL = "resnet50"
"""Measured on every device; other models are derived by their ratio to it."""


@dataclass(frozen=True)
class Timing:
    """Seconds that `device` computes for a batch of `batch_size` samples; `derived` says how they were obtained."""

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
    """Return every published timing, in the order of the file."""
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
    """Return the time of a batch on `device`: as published, or derived.

    For another batch size it is that of the nearest published one (by ratio, the larger of two) at the same rate of
    samples. For a model without a time on the device, it is ResNet-50's time there times the ratio of the two models on
    the most similar device with both. Raises UserError if there is none.
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
