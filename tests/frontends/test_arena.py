"""Memory and blocks: what a gradient's blocks contain when they leave, and when they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from prophet_scheduler.core.cut import Cut
from prophet_scheduler.frontends.torch.arena import Arena, ArenaBlock
from prophet_scheduler.frontends.torch.slot import Slot
from prophet_scheduler.frontends.torch.streams import Streams

KIB = 1024
SCALE = 1 / 3


class Recorded(Arena):
    """Arena that keeps each block that leaves, with what was in it."""

    scale = SCALE

    def __init__(self, params: Sequence[torch.Tensor], half: torch.dtype | None = None) -> None:
        slots = [Slot(None, f"p{place}", param, place) for place, param in enumerate(params)]
        super().__init__(slots, fusion=True, streams=lambda _device: Streams(), half=half)
        self.left: list[tuple[ArenaBlock, torch.Tensor]] = []

    def _send(self, block: ArenaBlock) -> Any:
        self.left.append((block, block.data.clone()))
        return block


def made(*shapes: tuple[int, ...], block_bytes: int = 8 * KIB, half: torch.dtype | None = None) -> Recorded:
    """Return an arena of parameters whose gradients have no zeros."""
    noise = torch.Generator().manual_seed(0)
    params = []
    for shape in shapes:
        param = torch.zeros(shape, requires_grad=True)
        param.grad = torch.rand(shape, generator=noise) + 1
        params.append(param)
    arena = Recorded(params, half)
    arena.recut(Cut.uniform(block_bytes))
    return arena


def as_a_whole(arena: Arena) -> torch.Tensor:
    """Return what the buffer must contain in the end."""
    buffer: torch.Tensor = torch.zeros_like(arena._buffers[0].data)
    for slot in arena.slots:
        place = buffer.as_strided(slot.view.size(), slot.view.stride(), slot.view.storage_offset())
        assert slot.param.grad is not None
        torch.mul(slot.param.grad, SCALE, out=place)
    return buffer


@pytest.mark.parametrize("half", [None, torch.float16, torch.bfloat16])
def test_what_leaves_is_complete(half: torch.dtype | None) -> None:
    arena = made((100,), (123, 457), (7,), half=half)
    for slot in reversed(arena.slots):
        arena.stage(slot)
    whole = as_a_whole(arena)
    assert sorted(block.id for block, _ in arena.left) == [block.id for block in arena.blocks]
    for block, content in arena.left:
        start = block.data.storage_offset()
        assert torch.equal(content, whole[start : start + block.data.numel()])


def test_a_block_that_two_gradients_share_leaves_with_the_later_one() -> None:
    # Block 1 has the end of the first gradient and the beginning of the second.
    arena = made((3 * KIB,), (16 * KIB,))
    first, second = arena.slots
    arena.stage(second)
    shared = arena.blocks[1]
    assert shared.slots == (first, second)
    assert shared.flight is None and all(block.flight is block for block in arena.blocks[2:])
    arena.stage(first)
    assert {block for block, _ in arena.left[-2:]} == {arena.blocks[0], shared}
