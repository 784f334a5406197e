"""The average that FSDP2 means, over gloo: its own is a sum there (pytorch issue 162338).

Rule of this file: torch's reduce-scatter with parts added up in the order of ranks. Importing it puts that in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter


def _reduce(
    self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
) -> None:
    parts = torch.empty_like(input_tensor)
    dist.all_to_all_single(parts, input_tensor, group=group)
    first, *others = parts.view(group.size(), -1)
    output_tensor.copy_(first)
    for other in others:
        output_tensor.add_(other)
    if op == dist.ReduceOp.AVG:
        output_tensor.div_(group.size())


DefaultReduceScatter.__call__ = _reduce  # type: ignore[method-assign,assignment]
