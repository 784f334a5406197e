"""The average that FSDP2 means, over gloo: its own is a sum there (pytorch issue 162338).

Rule of this file: torch's reduce-scatter with parts added up in the order of ranks, and the same for the all-reduce
between replicas. Importing it puts that in place. Ranks of other hosts (`on_hosts`) are added up before they are added.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

_hosts = ""


def on_hosts(hosts: str) -> None:
    """Take ranks for those of several hosts: a letter for each."""
    global _hosts
    _hosts = hosts
    if (takeover := sys.modules.get("prophet_fsdp.takeover")) is not None:
        vars(takeover)["own_host"] = lambda: hosts[dist.get_rank()]


def _by_hosts(rows: list[torch.Tensor], rank: int) -> list[torch.Tensor]:
    """Return what this rank adds up: a row of each rank of its host, and one of each other host, in the place of the
    rank with its number there.
    """
    own = [other for other, host in enumerate(_hosts) if host == _hosts[rank]]
    found = {other: rows[other] for other in own}
    for host in set(_hosts) - {_hosts[rank]}:
        ranks = [other for other, its in enumerate(_hosts) if its == host]
        total = rows[ranks[0]].clone()
        for other in ranks[1:]:
            total.add_(rows[other])
        found[ranks[own.index(rank) % len(ranks)]] = total
    return [found[other] for other in sorted(found)]


def _add_up(output: torch.Tensor, parts: torch.Tensor, group: Any, op: Any) -> None:
    rows = list(parts.view(group.size(), -1))
    first, *others = _by_hosts(rows, group.rank()) if _hosts else rows
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

    def all_reduce(self, tensor: torch.Tensor, op: Any, group: Any, async_op: bool = False) -> None:
        parts = tensor.new_empty(group.size() * tensor.numel())
        dist.all_gather_into_tensor(parts, tensor, group=group)
        _add_up(tensor, parts, group, op)


vars(_fsdp_collectives)["dist"] = _Distributed()
DefaultReduceScatter.__call__ = _reduce  # type: ignore[method-assign,assignment]
