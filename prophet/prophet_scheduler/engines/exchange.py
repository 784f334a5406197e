"""Engines as a job script uses them: a protocol for each framework, and a class for it in each engine.

Rule of this file: the protocols. No engine; the frameworks for types alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import mxnet as mx
    import torch


class TorchJobExchange(Protocol):
    """`rank` and `size` of the workers; `distribute` makes a model and its optimizer those of all workers.

    It is made with `compression="fp16"` where gradients are to travel in half precision, as the engine's own users do
    that.
    """

    rank: int
    size: int

    def distribute(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        """(what to call in place of the model, what to step in place of the optimizer); weights become equal."""

    def averaged(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Make every `.grad` the average of all workers, from backward to the end of this block.

        There a script may look at gradients and change them, clip them for instance, and call `optimizer.step()`, which
        takes them as they are then. `optimizer` is what `distribute` returned.
        """

    def close(self) -> None:
        """End the job."""


class GluonJobExchange(Protocol):
    """`rank` and `size` of the workers; `trainer` makes one whose `step` updates the weights of all."""

    rank: int
    size: int

    divisor: int
    """Argument of `step` for the mean over all workers, as a multiple of the batch of one worker."""

    def trainer(self, network: mx.gluon.Block, settings: Mapping[str, float]) -> mx.gluon.Trainer:
        """A trainer with SGD (`learning_rate`, `momentum`, ...) of a network that is initialised, shapes and all."""
