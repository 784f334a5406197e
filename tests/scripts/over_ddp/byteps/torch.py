"""BytePS's functions as the scripts in this folder call them, over DistributedDataParallel.

Rule of this file: a script runs as it is written, and torch alone averages. A module whose parameters were given to
`DistributedOptimizer` gets a DistributedDataParallel of its own when the script first calls it in training, and each
later call of it goes through that one. A call from within a call is the module's own.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

_averaged: dict[int, torch.Tensor] = {}
_wrapped: dict[int, DistributedDataParallel] = {}
_original = nn.Module.__call__
_depth = 0


def init() -> None:
    """Joins the others, as torchrun's variables say."""
    dist.init_process_group("gloo")
    nn.Module.__call__ = _call  # type: ignore[method-assign,assignment]


def rank() -> int:
    return dist.get_rank()


def broadcast_parameters(params: Any, root_rank: int, prefix: str = "") -> None:
    """Sends what one rank has to all."""
    for _, tensor in params.items() if isinstance(params, dict) else params:
        dist.broadcast(tensor.detach(), root_rank)


def push_pull(tensor: torch.Tensor, average: bool = True, name: str = "") -> torch.Tensor:
    """The average, or the sum, in a new tensor."""
    result = tensor.detach().clone()
    dist.all_reduce(result)
    return result / dist.get_world_size() if average else result


def byteps_push_pull(tensor: torch.Tensor, average: bool = True, name: str = "") -> torch.Tensor:
    """The same in place."""
    tensor.copy_(push_pull(tensor, average))
    return tensor


def synchronize(handle: torch.Tensor) -> torch.Tensor:
    return handle


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    backward_passes_per_step: int = 1,
) -> torch.optim.Optimizer:
    """The optimizer itself, with two methods that have nothing left to do."""
    _averaged.update((id(param), param) for _, param in named_parameters)
    optimizer.synchronize = lambda: None  # type: ignore[attr-defined]
    optimizer.skip_synchronize = contextlib.nullcontext  # type: ignore[attr-defined]
    return optimizer


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    if _depth or isinstance(self, DistributedDataParallel):
        with _inside():
            return _original(self, *args, **kwargs)
    ddp = _wrapped.get(id(self))
    if ddp is None and torch.is_grad_enabled() and any(id(param) in _averaged for param in self.parameters()):
        unused = bool(os.environ.get("FIND_UNUSED"))
        ddp = DistributedDataParallel(self, forward_sync_buffers=False, find_unused_parameters=unused)
        _wrapped[id(self)] = ddp
    with _inside():
        return _original(ddp if ddp is not None and torch.is_grad_enabled() else self, *args, **kwargs)


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
