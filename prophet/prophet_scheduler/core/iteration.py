"""One iteration of a job as input of the native simulation: operations on the processor, tensors on the wire.

Rule of this file: conversion of a profile and its units of transfer to the simulation's numbers. No cluster and no
policy. Both the simulator and predicting policies (policies/algorithms/predictor.py) start here.

Forward computes layer by layer, then backward goes through the profile's steps. A unit of transfer is ready when the
most urgent gradient in it is generated. The layer of that gradient waits for its return.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prophet_scheduler.core._native import OperationSpec, TensorSpec
from prophet_scheduler.core.cut import Block
from prophet_scheduler.core.profile import Profile

HEADER_BYTES = 100
"""Header bytes of a message: those of Ethernet, IP, TCP and the engine."""


class Load(NamedTuple):
    """Unit of transfer: its `id` in events and plans, its bytes, and the index of its most urgent gradient.

    `parts` has the bytes of its partitions if they differ in size.
    """

    id: int
    size_bytes: int
    first: int
    parts: tuple[int, ...] = ()


class Layout(NamedTuple):
    """Tensors of a list of loads, in the same order, and the indices of those that each operation generates."""

    tensors: list[TensorSpec]
    generates: list[list[int]]


class Iteration:
    """Operations of a profile. `backward` is the index of backward's first operation."""

    def __init__(self, profile: Profile) -> None:
        layers = len(profile.gradients)
        times = sorted({gradient.generation_s for gradient in profile.gradients})
        steps = {time_s: layers + place for place, time_s in enumerate(times)}
        self.backward = layers
        self.seconds = [gradient.forward_s for gradient in profile.gradients]
        self.seconds += [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        self._generated_by = [steps[gradient.generation_s] for gradient in profile.gradients]

    def layout(self, loads: Sequence[Load], *, barrier: bool = False) -> Layout:
        """Return the tensors of these loads. With a `barrier`, forward waits until all of them are back."""
        generates: list[list[int]] = [[] for _ in self.seconds]
        # Within a step, the last layer comes first: autograd produces gradients in that order.
        for place in reversed(range(len(loads))):
            generates[self._generated_by[loads[place].first]].append(place)
        tensors = [TensorSpec(load.size_bytes, [0 if barrier else load.first], load.parts, load.id) for load in loads]
        return Layout(tensors, generates)

    def operations(self, layout: Layout) -> list[OperationSpec]:
        """Return the operations as a chain, each with the tensors that it generates."""
        last = len(self.seconds) - 1
        return [
            OperationSpec(seconds, min(place, 1), [place + 1] if place < last else [], layout.generates[place])
            for place, seconds in enumerate(self.seconds)
        ]


def loads_of(blocks: Sequence[Block]) -> list[Load]:
    """Return a load for each block. A block's first piece belongs to its most urgent gradient."""
    return [Load(block.id, block.size_bytes, block.pieces[0].gradient) for block in blocks]
