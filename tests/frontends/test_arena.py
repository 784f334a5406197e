"""Memory and blocks: what a gradient's blocks have in them when they leave, and when they do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from prophet.core.cut import Cut
from prophet.frontends.torch import arena as arenas
from prophet.frontends.torch.arena import Arena, ArenaBlock, Slot
from prophet.frontends.torch.streams import Streams

KIB = 1024
PART = 16 * KIB
SCALE = 1 / 3


class Recorded(Arena):
    """Keeps what leaves: the block, what was in it, and how many elements of its buffer had been written by then."""

    scale = SCALE

    def __init__(self, params: Sequence[torch.Tensor], half: torch.dtype | None = None) -> None:
        slots = [Slot(None, f"p{place}", param, place) for place, param in enumerate(params)]
        super().__init__(slots, fusion=True, streams=lambda _device: Streams(), half=half)
        self.left: list[tuple[ArenaBlock, torch.Tensor, int]] = []

    def _send(self, block: ArenaBlock) -> Any:
        written = int(torch.count_nonzero(self._buffers[0].data))
        self.left.append((block, block.data.clone(), written))
        return block


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "PART_BYTES", PART)


def made(*shapes: tuple[int, ...], block_bytes: int = 8 * KIB, half: torch.dtype | None = None) -> Recorded:
    """An arena of parameters with gradients of no zeros."""
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
    """What the buffer has to have in the end."""
    buffer: torch.Tensor = torch.zeros_like(arena._buffers[0].data)
    for slot in arena.slots:
        place = buffer.as_strided(slot.view.size(), slot.view.stride(), slot.view.storage_offset())
        assert slot.param.grad is not None
        torch.mul(slot.param.grad, SCALE, out=place)
    return buffer


@pytest.mark.parametrize("half", [None, torch.float16, torch.bfloat16])
def test_what_leaves_is_complete_and_the_same_bits_as_in_one_piece(half: torch.dtype | None) -> None:
    arena = made((100,), (123, 457), (7,), half=half)
    for slot in reversed(arena.slots):
        arena.stage(slot)
    whole = as_a_whole(arena)
    assert sorted(block.id for block, _, _ in arena.left) == [block.id for block in arena.blocks]
    for block, content, _ in arena.left:
        start = block.data.storage_offset()
        assert torch.equal(content, whole[start : start + block.data.numel()])


def test_a_large_gradient_leaves_while_it_is_copied_its_last_part_first() -> None:
    elements = 16 * PART // 4
    arena = made((elements,))
    arena.stage(arena.slots[0])
    assert [block.id for block, _, _ in arena.left] == [block.id for block in reversed(arena.blocks)]
    assert [written * 4 // PART for _, _, written in arena.left] == [part for part in range(1, 17) for _ in range(2)]


def test_a_block_that_two_gradients_share_leaves_with_the_later_one() -> None:
    # Block 1 has the end of the first gradient and the beginning of the second.
    arena = made((3 * KIB,), (16 * KIB,))
    first, second = arena.slots
    arena.stage(second)
    shared = arena.blocks[1]
    assert shared.slots == (first, second)
    assert shared.flight is None and all(block.flight is block for block in arena.blocks[2:])
    arena.stage(first)
    assert [block for block, _, _ in arena.left[-2:]] == [arena.blocks[0], shared]


def test_what_lies_otherwise_than_in_the_arena_is_copied_as_a_whole() -> None:
    arena = made((64, 512))
    (slot,) = arena.slots
    slot.param.grad = torch.rand(512, 64).t() + 1
    assert slot.param.grad.stride() != slot.view.stride()
    arena.stage(slot)
    assert {written for _, _, written in arena.left} == {64 * 512}
    assert torch.equal(slot.view, slot.param.grad * SCALE)


def test_parameters_that_are_not_in_rows_come_in_parts_as_well() -> None:
    param = torch.zeros(8, 16, 32, 32).contiguous(memory_format=torch.channels_last).requires_grad_()
    param.grad = (torch.rand(8, 16, 32, 32) + 1).contiguous(memory_format=torch.channels_last)
    arena = Recorded([param])
    arena.recut(Cut.uniform(8 * KIB))
    arena.stage(arena.slots[0])
    assert len({written for _, _, written in arena.left}) == param.nbytes // PART
    assert torch.equal(arena.slots[0].view, param.grad * SCALE)


def test_a_small_gradient_and_none_at_all_are_copied_as_a_whole() -> None:
    arena = made((PART // 4,), (16 * PART // 4,))
    small, none = arena.slots
    arena.stage(small)
    assert {written for _, _, written in arena.left} == {PART // 4}
    none.param.grad = None
    arena.stage(none)
    assert {written for _, _, written in arena.left} == {PART // 4}
    assert not none.view.any()
