"""Many ways to train a small model, one after another in one script, each with a model of its own.

Rule of this file: what such a script would repeat. It is ordinary code of a program, and knows nothing of Prophet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from report import report
from torch import nn

Way = tuple[Callable[[Any, Any], Any], Callable[[], nn.Module], Callable[..., Any], dict[str, Any]]
_ways: list[Way] = []
begun: list[str] = []
"""Names of the ways that have begun to train; the last one trains at present."""


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))


def normed() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=1e-2)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 16 inputs of 32 numbers, and a class of 10 for each."""
    return torch.randn(16, 32), torch.randint(10, (16,))


def loss_of(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(inputs), labels)


def backward(model: Any) -> float:
    """Make gradients for a batch, and return its loss."""
    loss = loss_of(model, *batch())
    loss.backward()
    return loss.item()


def train(model: Any, optimizer: Any) -> float:
    """Make a step of the usual loop, and return its loss."""
    optimizer.zero_grad()
    loss = backward(model)
    optimizer.step()
    return loss


def way(build: Callable[[], nn.Module] = classifier, make: Callable[..., Any] = sgd, **options: Any) -> Any:
    """Have `run_...` train a model of `build` by the function that is decorated: `(model, optimizer)`, to what it saw.

    `options` are those of BytePS's optimizer, or of the model's wrapper.
    """

    def decorate(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        _ways.append((function, build, make, options))
        return function

    return decorate


def run_byteps() -> None:
    """Train in each way over BytePS, and report."""
    import byteps.torch as bps

    bps.init()

    def distributed(name: str, model: nn.Module, make: Callable[..., Any], **options: Any) -> tuple[nn.Module, Any]:
        named = [(f"{name}.{each}", param) for each, param in model.named_parameters()]
        optimizer = bps.DistributedOptimizer(make(model.parameters()), named_parameters=named, **options)
        bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix=f"{name}.")
        return model, optimizer

    _run(distributed, bps.rank())


def run_ddp(backend: str | None = "gloo") -> None:
    """Train in each way over DistributedDataParallel, or the option `wrap` in its place, and report."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group(backend)

    def distributed(
        name: str, model: nn.Module, make: Callable[..., Any], wrap: Any = DistributedDataParallel, **options: Any
    ) -> tuple[nn.Module, Any]:
        ddp = wrap(model, **options)
        return ddp, make(ddp.parameters())

    _run(distributed, dist.get_rank())


def run_fsdp() -> None:
    """Train in each way over FSDP2, and report. A way's `build` returns a module that is sharded."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    _run(lambda _, model, make: (model, make(model.parameters())), dist.get_rank())
    dist.destroy_process_group()


def _run(distributed: Callable[..., tuple[nn.Module, Any]], rank: int) -> None:
    seen: dict[str, Any] = {}
    for function, build, make, options in _ways:
        begun.append(function.__name__)
        torch.manual_seed(1)
        model, optimizer = distributed(function.__name__, build(), make, **options)
        torch.manual_seed(100 + rank)
        saw = function(model, optimizer)
        seen[function.__name__] = [[_whole(param) for param in model.parameters()], saw]
    report([params for params, _ in seen.values()], **seen)


def _whole(param: Any) -> torch.Tensor:
    whole: torch.Tensor = param.full_tensor() if hasattr(param, "full_tensor") else param
    return whole
