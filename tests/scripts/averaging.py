"""The average that FSDP2 means, over gloo: its own is a sum there (pytorch issue 162338).

Rule of this file: torch's reduce-scatter with parts added up in the order of ranks, and the same for the all-reduce
between replicas. Importing it puts that in place.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter


def _add_up(output: torch.Tensor, parts: torch.Tensor, group: Any, op: Any) -> None:
    first, *others = parts.view(group.size(), -1)
    output.copy_(first)
    for other in others:
        output.add_(other)
    if op == dist.ReduceOp.AVG:
        output.div_(group.size())


def _reduce(
    self: Any, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
) -> None:
    parts = torch.empty_like(input_tensor)
    dist.all_to_all_single(parts, input_tensor, group=group)
    _add_up(output_tensor, parts, group, op)


class _Distributed:
    """torch.distributed as FSDP2's collectives see it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(self, tensor: torch.Tensor, op: Any, group: Any) -> None:
        parts = tensor.new_empty(group.size() * tensor.numel())
        dist.all_gather_into_tensor(parts, tensor, group=group)
        _add_up(tensor, parts, group, op)


vars(_fsdp_collectives)["dist"] = _Distributed()
DefaultReduceScatter.__call__ = _reduce  # type: ignore[method-assign,assignment]
