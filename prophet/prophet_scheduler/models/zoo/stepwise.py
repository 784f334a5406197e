"""From layers to a profile: sizes in bytes, and generation times that follow the work in steps.

Rule of this file: pure functions of layers and numbers; which numbers a model gets by default is __init__.py's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models.zoo.layers import Layer

ELEMENT_BYTES = 4
"""Gradients are float32."""

Pattern = tuple[tuple[int, int], ...]
"""First and last gradient of every step, the most urgent step first: the stepwise pattern of section 2.2."""


def make_profile(
    name: str,
    layers: Sequence[Layer],
    *,
    total_bytes: int | None,
    steps: int | Pattern,
    backward_s: float,
    forward_s: float,
) -> Profile:
    """The profile of `layers`, scaled to `total_bytes` and to the given seconds; times are shares of the work.

    The backward pass takes as long for a layer as its multiplications' share of `backward_s`, from the last layer to
    the first. `steps` is either how many equal intervals it is cut into, at whose ends the gradients computed in them
    appear together, or which gradients appear together: then each step ends with its last layer to be computed. A
    layer's forward pass takes its share of `forward_s`. Sizes are whole float32 elements, at least one.

    Raises UserError for no steps, a pattern that leaves gradients out, and too few bytes for an element a gradient.
    """
    generation_s = (
        _equal_steps(name, layers, steps, backward_s)
        if isinstance(steps, int)
        else _pattern(name, layers, steps, backward_s)
    )
    sizes = scaled_bytes(name, layers, total_bytes)
    work = sum(layer.macs for layer in layers)
    gradients = tuple(
        GradientProfile(layer.name, size, generated, forward_s * layer.macs / work)
        for layer, size, generated in zip(layers, sizes, generation_s, strict=True)
    )
    return Profile(name, gradients)


def scaled_bytes(name: str, layers: Sequence[Layer], total_bytes: int | None) -> list[int]:
    """Bytes of each gradient, in the real proportions, with `total_bytes` as their sum (None: as they are).

    The largest takes what rounding left over. A sum that is no multiple of 4 is missed by less than one element.
    """
    elements = sum(layer.elements for layer in layers)
    if total_bytes is None:
        return [layer.elements * ELEMENT_BYTES for layer in layers]
    shares = [layer.elements * total_bytes // elements // ELEMENT_BYTES * ELEMENT_BYTES for layer in layers]
    sizes = [max(ELEMENT_BYTES, share) for share in shares]
    largest = sizes.index(max(sizes))
    sizes[largest] += (total_bytes - sum(sizes)) // ELEMENT_BYTES * ELEMENT_BYTES
    if sizes[largest] < ELEMENT_BYTES:
        # Rounding up costs at most an element a gradient, and the largest one's share must pay for that.
        most = max(layer.elements for layer in layers)
        enough_kb = math.ceil((len(layers) + 1) * ELEMENT_BYTES * elements / most / 10_000) * 10
        raise UserError(
            f"profile {name}: total_bytes is {total_bytes}, too small to scale to; give at least {enough_kb} kB"
        )
    return sizes


def _equal_steps(name: str, layers: Sequence[Layer], steps: int, backward_s: float) -> list[float]:
    if steps < 1:
        raise UserError(f"profile {name}: steps is {steps}; give at least 1")
    work = sum(layer.macs for layer in layers)
    generation_s = [0.0] * len(layers)
    done = 0
    for index in reversed(range(len(layers))):
        done += layers[index].macs
        step = max(1, math.ceil(done * steps / work))
        generation_s[index] = backward_s * step / steps
    return generation_s


def _pattern(name: str, layers: Sequence[Layer], pattern: Pattern, backward_s: float) -> list[float]:
    covered = [index for first, last in pattern for index in range(first, last + 1)]
    if covered != list(range(len(layers))):
        raise UserError(
            f"profile {name}: pattern must name each of the gradients 0 to {len(layers) - 1} once, in order, "
            "as (first, last) of every step"
        )
    work = sum(layer.macs for layer in layers)
    generation_s = [0.0] * len(layers)
    done = 0
    for first, last in reversed(pattern):
        done += sum(layer.macs for layer in layers[first : last + 1])
        for index in range(first, last + 1):
            generation_s[index] = backward_s * done / work
    return generation_s
