"""Reductions in stages: among the ranks that share a model's parts, and then among those that have the same part.

Rule of this file: which collectives a reduction between replicas is made of, and when each begins. wire.py moves data,
and collectives.py decides what is urgent.

A stage begins when the one before it has come. Ranks must begin collectives in the same order, whatever comes first on
one of them. So each begins at the same place of the program on all ranks: some reductions later, or where the backward
pass ends. The last stage of all is what nobody waits for. A program may look at a gradient on one rank alone, which
begins its stages there at once. So the numbers of their blocks are reserved beforehand.

Two replicas send each other what they have. More of them reduce a part each and gather, which sends fewer bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch

from prophet_fsdp.wire import ShardTransfer, ShardWire

FEW = 2
"""Most replicas that send each other everything."""
SHARDS_AFTER, PARTS_AFTER = 1, 4
"""Reductions that begin meanwhile, before the next stage does: of shards, mostly within a machine, and of parts."""

Stage = tuple[ShardWire, Callable[[], ShardTransfer], int]
"""Wire of a stage, the function that begins it, and the reductions that begin before the next stage."""


class Stages:
    """Reduction under way."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self._next = deque(stages)
        self._age = 0
        self._begin()

    @property
    def coming(self) -> int:
        """Return 0 if it is there."""
        return len(self._next) + self._now.coming

    @property
    def last(self) -> bool:
        """True if its last stage has begun."""
        return not self._next

    def another_begins(self) -> None:
        """Note that another reduction begins, and begin the next stage if it is due."""
        self._age += 1
        while self._next and self._age >= self._after:
            self.go_on()

    def go_on(self) -> None:
        """Wait for the present stage and begin the next one. Raises the wire's error."""
        self.wait()
        self._begin()

    def wait(self) -> None:
        """Wait for the present stage. Raises the wire's error."""
        self._wire.wait(self._now)

    def _begin(self) -> None:
        self._wire, begin, self._after = self._next.popleft()
        self._now = begin()


def between_replicas(
    wire: ShardWire, rank: int, ranks: int, source: torch.Tensor, average: bool, urgency: int, place: int
) -> tuple[torch.Tensor, list[Stage]]:
    """Return the place of a sum over all replicas of a flat tensor, and the stages that bring it there."""
    if ranks <= FEW:
        result = torch.empty_like(source)
        only = wire.reserve(result)
        return result, [
            (wire, lambda: wire.reduce(result, source, average, urgency, place, only, whole=True), PARTS_AFTER)
        ]
    part = -(-source.numel() // ranks)
    whole = source.new_empty(part * ranks)
    first, second = (wire.reserve(whole[:part]) for _ in range(2))

    def reduce() -> ShardTransfer:
        padded = source.new_zeros(part * ranks)
        padded[: source.numel()] = source
        return wire.reduce(whole.view(ranks, -1)[rank], padded, average, urgency, place, first)

    stages: list[Stage] = [
        (wire, reduce, PARTS_AFTER),
        (wire, lambda: wire.gather(whole, urgency, place, second), PARTS_AFTER),
    ]
    return whole[: source.numel()], stages
