"""BytePS for job scripts in PyTorch, used as in BytePS's documentation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class BytePSInTorch:
    """Exchange as in BytePS's examples: broadcast parameters, wrap the optimizer, and synchronize before clipping."""

    def __init__(self, compression: str = "none") -> None:
        import byteps.torch as bps

        bps.init()
        self._compression = getattr(bps.Compression, compression)
        self._bps = bps
        self.rank: int = bps.rank()
        self.size: int = bps.size()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self._bps.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._bps.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=self._compression
        )

    @contextmanager
    def averaged(self, optimizer: Any) -> Iterator[None]:
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            yield

    def close(self) -> None:
        pass  # as in BytePS's examples: BytePS ends with the process
