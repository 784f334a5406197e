"""DistributedDataParallel for job scripts in PyTorch, used as in PyTorch's documentation."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from prophet_scheduler.engines.ddp import BUCKET_CAP_MB

HOOKS = {"fp16": default_hooks.fp16_compress_hook}
_kept: list[torch.nn.Module] = []
"""Modules, kept alive until the process exits. Whoever drops the last reference to a gloo group joins its threads while
holding the GIL. A thread that is just dropping its last operation waits for the GIL: a deadlock (pytorch issue 56297).
It occurred in about one of sixty scripts here that end right after their last step, when their module is freed."""


class DdpInTorch:
    """Exchange as in PyTorch's tutorial: a process group from the environment, and a wrapped model."""

    def __init__(self, compression: str = "none") -> None:
        torch.distributed.init_process_group("gloo")
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        self._hook = HOOKS.get(compression)

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        cap = os.environ.get(BUCKET_CAP_MB)
        more: dict[str, Any] = {} if cap is None else {"bucket_cap_mb": float(cap)}
        ddp = torch.nn.parallel.DistributedDataParallel(model, **more)
        _kept.append(ddp)
        if self._hook is not None:
            ddp.register_comm_hook(None, self._hook)
        return ddp, optimizer

    def averaged(self, optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # Gradients are averages once backward() has returned.

    def close(self) -> None:
        torch.distributed.destroy_process_group()
