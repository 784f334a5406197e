"""Interfaces through which job scripts use engines: one protocol per framework, implemented by a class in each engine.

Rule of this file: the protocols. No engine; frameworks only as types.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import mxnet as mx
    import torch


class TorchJobExchange(Protocol):
    """An engine for a PyTorch job, with this worker's `rank` and the number of workers, `size`.

    Constructed with `compression="fp16"`, it sends gradients in half precision, in the way of the engine's own users.
    """

    rank: int
    size: int

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """Return (model, optimizer) to use in place of the given ones. All workers then have equal weights."""

    def averaged(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Return a context, entered after backward, in which each `.grad` is the average of all workers.

        In it a script may read and change gradients, for instance clip them, and then call `optimizer.step()`, which
        uses them unchanged. `optimizer` is the one that `distribute` returned.
        """

    def close(self) -> None:
        """End the job."""


class GluonJobExchange(Protocol):
    """An engine for a Gluon job, with this worker's `rank` and the number of workers, `size`."""

    rank: int
    size: int

    divisor: int
    """Factor of one worker's batch size in the argument of `step`, for the mean over all workers."""

    def trainer(self, network: mx.gluon.Block, settings: Mapping[str, float]) -> mx.gluon.Trainer:
        """Return an SGD trainer (`learning_rate`, `momentum`, ...) for all workers. `network` is fully initialised."""
