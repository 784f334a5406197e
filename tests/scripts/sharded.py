"""Sharded layers and their usual step, with the average that FSDP2 means (averaging.py).

Rule of this file: what scripts over FSDP2 would repeat. It is ordinary code of a program, and knows nothing of Prophet.
"""

from __future__ import annotations

from typing import Any

import averaging  # noqa: F401
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def parts(count: int = 4, wrap: Any = lambda layer: layer, **options: Any) -> list[Any]:
    """Return sharded layers of 40 inputs and outputs."""
    return [fully_shard(wrap(nn.Linear(40, 40)), **options) for _ in range(count)]


def layers(kind: Any = nn.Sequential, wrap: Any = lambda layer: layer, **options: Any) -> Any:
    """Return a sharded model of four such layers and a head, whose 7 classes do not divide evenly."""
    return fully_shard(kind(*parts(4, wrap, **options), nn.Linear(40, 7)), **options)


def adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2)


def loss_of(model: Any, *arguments: Any) -> torch.Tensor:
    """Return the loss for 8 random inputs."""
    return nn.functional.cross_entropy(model(torch.randn(8, 40), *arguments).float(), torch.randint(7, (8,)))


def backward(model: Any, *arguments: Any) -> float:
    """Make gradients for a batch, and return its loss."""
    loss = loss_of(model, *arguments)
    loss.backward()
    return loss.item()


def step(model: Any, optimizer: Any, *arguments: Any) -> float:
    """Make a step of the usual loop, and return its loss."""
    return update(optimizer, loss_of(model, *arguments))


def update(optimizer: Any, loss: torch.Tensor) -> float:
    """Make a step by this loss; clear the gradients after it."""
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
