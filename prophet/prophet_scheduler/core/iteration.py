"""One iteration of a job as the native simulation takes it: operations on the processor, tensors on the wire.

Rule of this file: from a profile, and from what travels as one, to the simulation's numbers; no cluster and no policy.
The simulator and a policy that predicts (policies/algorithms/predictor.py) both begin here.

Forward computes layer by layer, then backward goes through the profile's steps. What travels as one is there when the
most urgent gradient of which it has a part is generated, and the layer of that gradient waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prophet_scheduler.core._native import OperationSpec, TensorSpec
from prophet_scheduler.core.cut import Block
from prophet_scheduler.core.profile import Profile

HEADER_BYTES = 100
"""Headers of a message, beside its data: those of Ethernet, IP, TCP and the engine."""


class Load(NamedTuple):
    """Unit that travels: its `id` in events and plans, bytes, and the place of its most urgent gradient in the profile.

    `parts`: the bytes of its partitions, where they are not all of one size.
    """

    id: int
    size_bytes: int
    first: int
    parts: tuple[int, ...] = ()


class Layout(NamedTuple):
    """The tensors of a list of loads, in its order, and which of them each operation generates."""

    tensors: list[TensorSpec]
    generates: list[list[int]]


class Iteration:
    """The operations of a profile; `backward` is the one that backward begins with."""

    def __init__(self, profile: Profile) -> None:
        layers = len(profile.gradients)
        times = sorted({gradient.generation_s for gradient in profile.gradients})
        steps = {time_s: layers + place for place, time_s in enumerate(times)}
        self.backward = layers
        self.seconds = [gradient.forward_s for gradient in profile.gradients]
        self.seconds += [later - earlier for earlier, later in zip([0.0, *times], times, strict=False)]
        self._generated_by = [steps[gradient.generation_s] for gradient in profile.gradients]

    def layout(self, loads: Sequence[Load], *, barrier: bool = False) -> Layout:
        """Return the tensors of these loads. With a `barrier` forward begins when everything is back."""
        generates: list[list[int]] = [[] for _ in self.seconds]
        # Within a step what belongs to the last layer comes first, as autograd hands gradients over.
        for place in reversed(range(len(loads))):
            generates[self._generated_by[loads[place].first]].append(place)
        tensors = [TensorSpec(load.size_bytes, [0 if barrier else load.first], load.parts, load.id) for load in loads]
        return Layout(tensors, generates)

    def operations(self, layout: Layout) -> list[OperationSpec]:
        """Return the operations, one after another, with the tensors that each generates."""
        last = len(self.seconds) - 1
        return [
            OperationSpec(seconds, min(place, 1), [place + 1] if place < last else [], layout.generates[place])
            for place, seconds in enumerate(self.seconds)
        ]


def loads_of(blocks: Sequence[Block]) -> list[Load]:
    """Return a load for each block, whose first piece is of the most urgent gradient."""
    return [Load(block.id, block.size_bytes, block.pieces[0].gradient) for block in blocks]
