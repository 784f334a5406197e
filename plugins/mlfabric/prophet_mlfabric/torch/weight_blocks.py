"""A model's weights as the blocks that asynchronous training sends, each with a count of the updates in it.

Rule of this file: memory and arithmetic. An engine's front end decides what to send when.

The weights of an optimizer lie one after another, in the order of its parameters, as 32-bit floats, cut into blocks.
A block's weights are followed by counts: one for each worker, and one for the start. A worker's update adds 1 to its
own count in every block, in the same sum as the weights. The root's first weights add 1 to the last count, plus the
updates they already had if the job continues another. So a model itself tells which updates are in it: blocks with
equal counts have the same updates, and the workers' counts add up to the version (MLfabric, section 2).

Counts are floats: exact up to 2**24 updates of one worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Counts = tuple[int, ...]
"""Updates by worker. The last is 0 before the root's first weights arrive, then 1 more than the updates they had."""


class WeightBlocks:
    """Weights of `parameters`, cut into blocks of about `block_bytes`, in a job of `workers` workers.

    `blocks` are sent: one-dimensional CPU tensors of float32, weights and then workers + 1 counts, at fixed addresses,
    one after another in `memory`. Raises ValueError if there are no parameters or one is not float32.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], workers: int, block_bytes: int) -> None:
        other = next((param for param in parameters if param.dtype != torch.float32), None)
        if other is not None or not parameters:
            present = "there are none" if other is None else f"one is {other.dtype}"
            raise ValueError(f"asynchronous training sends parameters of torch.float32, and {present}")
        self.parameters = list(parameters)
        self.counted = workers + 1
        elements = sum(param.numel() for param in parameters)
        most = max(1, block_bytes // 4)
        self._bounds = [(start, min(start + most, elements)) for start in range(0, elements, most)]
        self.memory = torch.zeros(elements + len(self._bounds) * self.counted, dtype=torch.float32)
        self.blocks = self.views(self.memory)
        self._known = torch.zeros(elements, dtype=torch.float32)
        """Weights as last read from the server."""
        self._scratch = torch.zeros(elements, dtype=torch.float32)

    @property
    def size_bytes(self) -> int:
        """Bytes of all blocks, counts included."""
        return sum(block.nbytes for block in self.blocks)

    def views(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return the blocks in other memory of the same length."""
        lengths = [stop - start + self.counted for start, stop in self._bounds]
        return list(memory.split(lengths))

    def hold_weights(self, before: int = 0) -> None:
        """Put the parameters themselves into the blocks, for the server to begin with.

        `before` is the number of updates they had in earlier jobs.
        """
        self._gather()
        self._spread(self._scratch, self.counted - 1, 1 + before)

    def hold_update(self, worker: int) -> float:
        """Put the parameters' change since the last `take` into the blocks, counted as this worker's.

        Return the update's Euclidean norm.
        """
        self._gather()
        self._scratch -= self._known
        self._spread(self._scratch, worker)
        return float(torch.linalg.vector_norm(self._scratch))

    def parameters_in(self, memory: torch.Tensor) -> list[torch.Tensor]:
        """Return copies of the weights in `memory`, which is laid out like the blocks, in the parameters' shapes."""
        views = zip(self.views(memory), self._bounds, strict=True)
        return self._parts(torch.cat([block[: stop - start] for block, (start, stop) in views]))

    def counts(self, place: int) -> Counts:
        return counts_of(self.blocks[place], self.counted)

    def take(self) -> Counts:
        """Set the parameters' values from the blocks. Return the counts."""
        for block, (start, stop) in zip(self.blocks, self._bounds, strict=True):
            self._known[start:stop] = block[: stop - start]
        with torch.no_grad():
            for param, part in zip(self.parameters, self._parts(self._known), strict=True):
                param.copy_(part)
        return self.counts(0)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return all weights in the parameters' shapes."""
        parts = flat.split([param.numel() for param in self.parameters])
        return [part.view(param.shape) for part, param in zip(parts, self.parameters, strict=True)]

    def _gather(self) -> None:
        with torch.no_grad():
            for part, param in zip(self._parts(self._scratch), self.parameters, strict=True):
                part.copy_(param)

    def _spread(self, values: torch.Tensor, counted_by: int, count: int = 1) -> None:
        for block, (start, stop) in zip(self.blocks, self._bounds, strict=True):
            block[: stop - start] = values[start:stop]
            block[-self.counted :] = 0
            block[-self.counted + counted_by] = count


def counts_of(block: torch.Tensor, counted: int) -> Counts:
    """Return the `counted` counts behind the weights of a block."""
    return tuple(int(count) for count in block[-counted:].tolist())


def behind(counts: Sequence[Counts]) -> list[int]:
    """Return the places of the blocks that lack an update that another block has."""
    newest = tuple(map(max, zip(*counts, strict=True)))
    return [place for place, own in enumerate(counts) if own != newest]


def updates_before(counts: Counts) -> int:
    """Return the number of updates that the root's first weights had."""
    return max(0, counts[-1] - 1)
