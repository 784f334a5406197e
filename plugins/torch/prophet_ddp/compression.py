"""torch's own hooks that make gradients small, done block by block.

Rule of this file: what travels instead of a block, bit for bit as torch's default_hooks make it of a bucket: elements
are rounded to the small type, divided by the number of ranks there, summed, and put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from prophet_ddp.rounds import Compression


def _to(dtype: torch.dtype) -> Compression:
    def compress(data: torch.Tensor, ranks: int) -> tuple[torch.Tensor, Callable[[], None]]:
        small = data.to(dtype).div_(ranks)
        return small, lambda: _put_back(data, small)

    return compress


def _put_back(data: torch.Tensor, small: torch.Tensor) -> None:
    data.copy_(small)


KNOWN: Mapping[Any, Compression | None] = {
    default_hooks.allreduce_hook: None,
    default_hooks.fp16_compress_hook: _to(torch.float16),
    default_hooks.bf16_compress_hook: _to(torch.bfloat16),
}
"""Hooks that are known, None where they do what is done without."""
