"""Profiles made from layers: sizes in bytes, and stepwise generation times according to the work.

Rule of this file: pure functions of layers and numbers. __init__.py chooses the numbers of a model.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from prophet_scheduler.core.errors import UserError
from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.models.zoo.layers import Layer

ELEMENT_BYTES = 4
"""Bytes per element of a gradient (float32)."""

Pattern = tuple[tuple[int, int], ...]
"""Stepwise pattern (section 2.2): first and last gradient of each step, most urgent step first."""


def make_profile(
    name: str,
    layers: Sequence[Layer],
    *,
    total_bytes: int | None,
    steps: int | Pattern,
    backward_s: float,
    forward_s: float,
) -> Profile:
    """Return the profile of `layers`, scaled to `total_bytes` and to the seconds of the two passes.

    Backward goes from the last layer to the first. A layer takes the same share of `backward_s` and `forward_s` as it
    has of all multiplications. `steps` is a number of equal intervals, at whose ends their gradients appear together,
    or a pattern of gradients that appear together when the last of them is computed. Sizes are whole float32 elements,
    at least one.

    Raises UserError if `steps` is below 1, or if there are too few bytes for one element per gradient.
    """
    if isinstance(steps, int) and steps < 1:
        raise UserError(f"profile {name}: steps is {steps}; give at least 1")
    sizes = scaled_bytes(name, layers, total_bytes)
    work = sum(layer.macs for layer in layers)
    done = list(itertools.accumulate(layer.macs for layer in reversed(layers)))[::-1]
    if isinstance(steps, int):
        generation_s = [backward_s * max(1, math.ceil(macs * steps / work)) / steps for macs in done]
    else:
        first_of = {index: first for first, last in steps for index in range(first, last + 1)}
        generation_s = [backward_s * done[first_of[index]] / work for index in range(len(layers))]
    gradients = tuple(
        GradientProfile(layer.name, size, generated, forward_s * layer.macs / work)
        for layer, size, generated in zip(layers, sizes, generation_s, strict=True)
    )
    return Profile(name, gradients)


def scaled_bytes(name: str, layers: Sequence[Layer], total_bytes: int | None) -> list[int]:
    """Return the bytes of each gradient, scaled to a sum of `total_bytes` (None: unscaled).

    The largest gradient absorbs the rounding. If `total_bytes` is no multiple of 4, the sum is up to 3 bytes below it.
    """
    elements = sum(layer.elements for layer in layers)
    if total_bytes is None:
        return [layer.elements * ELEMENT_BYTES for layer in layers]
    shares = [layer.elements * total_bytes // elements // ELEMENT_BYTES * ELEMENT_BYTES for layer in layers]
    sizes = [max(ELEMENT_BYTES, share) for share in shares]
    largest = sizes.index(max(sizes))
    sizes[largest] += (total_bytes - sum(sizes)) // ELEMENT_BYTES * ELEMENT_BYTES
    if sizes[largest] < ELEMENT_BYTES:
        # Rounding up adds at most one element per gradient, which the largest gradient's share must absorb.
        most = max(layer.elements for layer in layers)
        enough_kb = math.ceil((len(layers) + 1) * ELEMENT_BYTES * elements / most / 10_000) * 10
        raise UserError(
            f"profile {name}: total_bytes is {total_bytes}, too small to scale to; give at least {enough_kb} kB"
        )
    return sizes
