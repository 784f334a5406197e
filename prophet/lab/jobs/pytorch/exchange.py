"""What moves the gradients of a PyTorch job: BytePS, or DistributedDataParallel over gloo.

Rule of this file: what a user's script says to each of them by its own documentation, and nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import torch

from prophet.lab.jobs.common import weights_sha256


class Exchange(Protocol):
    """`rank` and `size` of the workers; `distribute` makes a model and its optimizer those of all workers."""

    rank: int
    size: int

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """(what to call in place of the model, what to step in place of the optimizer); weights become equal."""

    def close(self) -> None:
        """At the end of the job."""


class BytePS:
    """As in BytePS's examples: broadcast the parameters, wrap the optimizer."""

    def __init__(self) -> None:
        import byteps.torch as bps

        bps.init()
        self._bps = bps
        self.rank: int = bps.rank()
        self.size: int = bps.size()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        self._bps.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, self._bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    def close(self) -> None:
        pass  # as in BytePS's examples; it ends with the process


class Ddp:
    """As PyTorch's tutorial of it says: a process group from the environment, wrap the model."""

    def __init__(self) -> None:
        torch.distributed.init_process_group("gloo")
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        return torch.nn.parallel.DistributedDataParallel(model), optimizer

    def close(self) -> None:
        torch.distributed.destroy_process_group()


EXCHANGES: Mapping[str, Callable[[], Exchange]] = MappingProxyType({"byteps": BytePS, "ddp": Ddp})


def model_record(model: torch.nn.Module) -> tuple[list[str], str]:
    """(names of the parameters in order, digest of their values), for the recorder.

    Without buffers: running means of batch normalisation are each worker's own.
    """
    weights = {name: parameter.detach().cpu().numpy() for name, parameter in model.named_parameters()}
    return list(weights), weights_sha256(weights)
