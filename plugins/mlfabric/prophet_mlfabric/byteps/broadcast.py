"""Tensors of one worker for all of them, over BytePS's asynchronous servers.

Rule of this file: a broadcast where BytePS's own does not work. That is a sum to which all but the root add zeros, but
an asynchronous server answers before the root has added anything. Here the root's bytes and a mark go as one update,
and the others ask until the mark is there.

All tensors travel as one, byte for byte, as 32-bit integers: the sum of a number and zeros is the number.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from prophet_mlfabric.byteps.wire import BytePSWire

_numbers = itertools.count()


def broadcast_tensors(
    bps: Any,
    tensors: Sequence[torch.Tensor],
    root: int,
    wait_activity: Callable[[float], None],
    stall_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Set `tensors` of all workers to those of worker `root`, in place. Every worker has to call it.

    The process ends if one is not heard of for `stall_s`; None for never.
    """
    sizes = [tensor.nbytes for tensor in tensors]
    page = torch.zeros(sum(sizes) // 4 + 2, dtype=torch.int32)
    wire = BytePSWire(bps, f"broadcast.{next(_numbers)}", 1, wait_activity, stall_s)
    wire.open([page])
    held = page[1:].view(torch.uint8)
    if bps.rank() == root:
        page[0] = 1
        place = 0
        for tensor, size in zip(tensors, sizes, strict=True):
            held[place : place + size] = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
            place += size
        wire.push([page])
        return
    wire.pull_until(page, lambda: int(page[0]) == 1, f"worker {root}, which has the parameters,", sleep)
    place = 0
    with torch.no_grad():
        for tensor, size in zip(tensors, sizes, strict=True):
            if size:
                # A copy, since a tensor may be of a type that cannot begin at any byte.
                tensor.copy_(held[place : place + size].clone().view(tensor.dtype).view(tensor.shape))
            place += size
