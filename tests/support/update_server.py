"""An asynchronous server of a few lines, as the rounds of MLfabric's workers see it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch


class UpdateServer:
    """Adds each update as a whole, and counts pushes and pulled blocks. `sums` are its blocks.

    `between` is called after each block that a pull has read.
    """

    def __init__(self, sums: Sequence[torch.Tensor] = ()) -> None:
        self.sums = [block.clone() for block in sums]
        self.pushes = self.pulls = 0
        self.between: Callable[[int], None] = lambda place: None
        self.lock = threading.RLock()

    def push(self, blocks: Sequence[torch.Tensor]) -> None:
        with self.lock:
            self.pushes += 1
            self.add(blocks, range(len(blocks)))

    def add(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        """Add the blocks at these places."""
        if not self.sums:
            self.sums = [torch.zeros_like(block) for block in blocks]
        for place in places:
            self.sums[place] += blocks[place]

    def pull(self, blocks: Sequence[torch.Tensor], places: Sequence[int]) -> None:
        with self.lock:
            for block, place in zip(blocks, places, strict=True):
                assert not block.any(), "what a pull would push adds nothing"
                if self.sums:
                    block.copy_(self.sums[place])
                self.pulls += 1
                self.between(place)

    def pull_until(
        self, block: torch.Tensor, there: Callable[[], bool], who: str, sleep: Callable[[float], None]
    ) -> None:
        while True:
            self.pull([block.zero_()], [0])
            if there():
                return
            sleep(0.01)
