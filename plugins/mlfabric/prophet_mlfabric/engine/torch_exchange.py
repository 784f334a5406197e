"""Exchange of a PyTorch script with BytePS's asynchronous servers: it only wraps the optimizer.

Weights have to begin with zeros: BytePS's own asynchronous optimizer pulls the sum of all changes since the start
(docs/corrections.md, Answering), and a broadcast is answered before the root has sent anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from prophet_mlfabric.engine import make_token
from prophet_scheduler.core import settings
from prophet_scheduler.engines.byteps.torch_exchange import BytePSInTorch


class AsynchronousInTorch(BytePSInTorch):
    """`asynchronous` tells a script that workers step separately."""

    asynchronous = True

    def __init__(self) -> None:
        make_token(Path(os.environ[settings.COORDINATOR_TOKEN_FILE]))
        super().__init__()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        if any(bool(weights.any()) for weights in model.parameters()):
            raise ValueError("BytePS's own asynchronous training loses the initial weights; begin with zeros")
        return model, self._bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @contextmanager
    def averaged(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        yield  # gradients stay this worker's own
