"""Reductions in stages: among the ranks that share a model's parts, and then among those that have the same part.

Rule of this file: which collectives a reduction between replicas is made of. wire.py moves data, and collectives.py
decides what is urgent.

A stage begins when the one before it has come, on each rank by itself. So a program may look at a gradient on one rank
alone. All ranks reserve the numbers of all blocks where the reduction begins, in the order of the program.

Two replicas send each other what they have. More of them reduce a part each and gather, which sends fewer bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from prophet_fsdp.wire import SERIAL, ShardTransfer, ShardWire

FEW = 2
"""Most replicas that send each other everything."""


@dataclass(frozen=True)
class Stage:
    """A collective of a reduction: the function that begins it, and what was reserved for it on a wire."""

    begin: Callable[[], object]
    wire: ShardWire
    transfer: ShardTransfer


class Reduction:
    """Reduction under way."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        # Without what begins them, which keeps whole gradients.
        self._transfers = [(stage.wire, stage.transfer) for stage in stages]
        for stage, following in itertools.pairwise(stages):
            stage.transfer.then = following.begin
        stages[0].begin()

    @property
    def there(self) -> bool:
        """True when its last stage has come."""
        return self._transfers[-1][1].there

    def wait(self) -> None:
        """Wait for its last stage. Raises a wire's error."""
        for wire, transfer in self._transfers:
            wire.wait(transfer)


def between_replicas(
    wire: ShardWire, rank: int, ranks: int, source: torch.Tensor, average: bool, urgency: int, place: int
) -> tuple[torch.Tensor, list[Stage]]:
    """Return the place of a sum over all replicas of a flat tensor, and the stages that bring it there."""
    if ranks <= FEW:
        result = torch.empty_like(source)
        only = wire.reserve(result)
        return result, [
            Stage(lambda: wire.reduce(result, source, average, urgency, place, only, whole=True), wire, only)
        ]
    part = -(-source.numel() // ranks)
    whole = source.new_empty(part * ranks)
    first, second = (wire.reserve(whole[:part], stage) for stage in range(2))

    def reduce() -> None:
        padded = source.new_zeros(part * ranks)
        for to, of in zip(padded.split(SERIAL), source.split(SERIAL), strict=False):
            to[: of.numel()].copy_(of)
        wire.reduce(whole.view(ranks, -1)[rank], padded, average, urgency, place, first)

    return whole[: source.numel()], [
        Stage(reduce, wire, first),
        Stage(lambda: wire.gather(whole, urgency, place, second), wire, second),
    ]
