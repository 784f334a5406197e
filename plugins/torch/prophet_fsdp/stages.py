"""Reductions in stages: first among the ranks that share a model's parts, then among those that have the same part.

Rule of this file: which collectives make up a reduction between replicas. wire.py moves data, and collectives.py
decides what is urgent.

On each rank a stage starts once the one before it has arrived there. So a program may read a gradient on one rank
alone. All ranks reserve the numbers of all blocks when the reduction starts, in the order of the program.

Two replicas send each other everything. More replicas reduce one part each and gather them, which sends fewer bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from prophet_fsdp.wire import SERIAL, ShardTransfer, ShardWire

FEW = 2
"""Maximum number of replicas that send each other everything."""


@dataclass(frozen=True)
class Stage:
    """A collective of a reduction: the function that starts it, and its reservation on a wire."""

    begin: Callable[[], object]
    wire: ShardWire
    transfer: ShardTransfer


class Reduction:
    """Reduction in progress."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        # Keeps no functions that start stages: they hold whole gradients.
        self._transfers = [(stage.wire, stage.transfer) for stage in stages]
        for stage, following in itertools.pairwise(stages):
            stage.transfer.then = following.begin
        stages[0].begin()

    @property
    def there(self) -> bool:
        """True once the last stage has arrived."""
        return self._transfers[-1][1].there

    def wait(self) -> None:
        """Wait for the last stage. Raises a wire's error."""
        for wire, transfer in self._transfers:
            wire.wait(transfer)


def between_replicas(
    wire: ShardWire, rank: int, ranks: int, source: torch.Tensor, average: bool, urgency: int, place: int
) -> tuple[torch.Tensor, list[Stage]]:
    """Return the future sum (or average) of a flat tensor over all replicas, and the stages that compute it."""
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
