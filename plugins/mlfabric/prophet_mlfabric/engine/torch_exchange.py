"""Exchange of a PyTorch script with BytePS's asynchronous servers: it only wraps the optimizer.

Weights have to begin with zeros: BytePS's own asynchronous optimizer pulls the sum of all changes since the start
(docs/corrections.md, Answering), and a broadcast is answered before the root has sent anything.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch

from prophet_mlfabric.engine import make_token
from prophet_scheduler.core import settings


class AsynchronousInTorch:
    """`asynchronous` tells a script that workers step separately."""

    asynchronous = True

    def __init__(self) -> None:
        make_token(Path(os.environ[settings.COORDINATOR_TOKEN_FILE]))
        import byteps.torch as bps

        bps.init()
        self._bps = bps
        self.rank: int = bps.rank()
        self.size: int = bps.size()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        if any(bool(weights.any()) for weights in model.parameters()):
            raise ValueError("BytePS's own asynchronous training loses the initial weights; begin with zeros")
        return model, self._bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def averaged(self, optimizer: torch.optim.Optimizer) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # gradients stay this worker's own

    def close(self) -> None:
        pass  # as in BytePS's examples, BytePS ends with the process
