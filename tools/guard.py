"""Cost of detecting every use of a parameter.

Rule of this file: measuring on one core. There is no network: a stand-in for BytePS keeps an update pending during a
measurement. `make guard` runs it; it takes about two minutes on a quiet machine.
"""

from __future__ import annotations

import os
import statistics
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import nn

REPEATS = 9
WIDTHS = (64, 128, 256)
"""Widths of the transformer's layers."""
REPLAY_ITERATION_S = 0.9
"""Seconds of computing, as sleep, in an iteration of the replay (configs/replay-resnet50.yaml)."""


class Held:
    """Stand-in for BytePS with two workers, as the front end needs it: transfers up to `arrived` have ended."""

    __name__ = "byteps.torch"
    Compression = types.SimpleNamespace(none=None, fp16="fp16")

    def __init__(self) -> None:
        self.handles = 0
        self.arrived = 0
        self.DistributedOptimizer: Callable[..., Any] = lambda *arguments: None
        self.init = self.shutdown = self.suspend = self.resume = lambda *arguments: None
        self.declare = self.synchronize = self.init
        self.size, self.local_size, self.rank = (lambda number=number: number for number in (2, 1, 0))

    def byteps_push_pull(self, tensor: torch.Tensor, average: bool, name: str, priority: int) -> int:
        self.handles += 1
        return self.handles

    def poll(self, handle: int) -> bool:
        return handle <= self.arrived


def cost_of(name: str, model: nn.Module, inputs: torch.Tensor, iteration_s: float | None = None) -> dict[str, Any]:
    """Measure the costs of one model. `iteration_s` None is measured; the replay's is given, since it sleeps.

    Costs are processor seconds: of one sample's forward pass without and with a watch on every call, of step() until it
    returns, and of an iteration of the same model with its own optimizer.

    Watching adds a cost to each call, however much the call computes. So both are measured on one sample, where
    computing does not hide the difference.
    """
    from prophet_byteps.torch import front_end

    sample, held = inputs[:1, :1], Held()
    front_end.install(held)
    model_optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    optimizer = held.DistributedOptimizer(model_optimizer, model.named_parameters())
    # An update of a parameter that nothing uses: while it is pending, every call is watched.
    unused = nn.Parameter(torch.zeros(1))
    other = held.DistributedOptimizer(torch.optim.SGD([unused], 0.1), [("unused", unused)])
    took: dict[str, list[float]] = {"forward_s": [], "watched_s": [], "step_s": [], "iteration_s": []}

    def timed(key: str, work: Callable[[], Any]) -> None:
        began = time.process_time()
        work()
        took[key].append(time.process_time() - began)

    def backward() -> None:
        model(inputs).sum().backward()

    def whole_iteration() -> None:
        model_optimizer.zero_grad()
        backward()
        model_optimizer.step()

    def settle() -> None:
        held.arrived = held.handles
        optimizer.finish_updates()
        other.finish_updates()

    def step_other() -> None:
        unused.grad = torch.zeros(1)
        other.step()

    original, held.poll = held.poll, lambda handle: True  # type: ignore[method-assign]
    for _ in range(3):  # at first step() waits, to learn how the program reaches its parameters
        optimizer.zero_grad()
        backward()
        optimizer.step()
        step_other()
    held.poll = original  # type: ignore[method-assign]
    settle()
    for _ in track(range(REPEATS), name, transient=True):
        timed("forward_s", lambda: model(sample))
        step_other()
        timed("watched_s", lambda: model(sample))
        settle()
        optimizer.zero_grad()
        backward()
        timed("step_s", optimizer.step)
        settle()
        if iteration_s is None and len(took["iteration_s"]) < 5:
            timed("iteration_s", whole_iteration)
            # The hooks have sent these gradients as well.
            optimizer.step()
            settle()
    # The machine's speed drifts by more than the difference of the first two; the minimum of many shows it best.
    best = {key: min(took[key]) for key in ("forward_s", "watched_s")}
    whole_s = statistics.median(took["iteration_s"]) if iteration_s is None else iteration_s
    others = {"step_s": statistics.median(took["step_s"]), "iteration_s": whole_s}
    return {"name": name, "parameters": len(list(model.parameters())), **best, **others}


def transformer(width: int) -> tuple[nn.Module, torch.Tensor]:
    """Return a model of 100 small layers with 4 heads, and a batch of 16 sequences of length 32."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(100)]
    return nn.Sequential(*layers), torch.randn(16, 32, width)


def chain() -> tuple[nn.Module, torch.Tensor]:
    """Return a model with as many gradients as ResNet-50, each in its own module, as in the replay, and an input."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(161))), torch.randn(1, 1, 4)


def measure(out: Path, results: Path) -> dict[str, Any]:
    """Measure the replay's model and transformers; `load` is the load average of the last minute."""
    torch.set_num_threads(1)
    costs = [cost_of("replay of ResNet-50", *chain(), iteration_s=REPLAY_ITERATION_S)]
    costs += [cost_of(f"transformer of 100 layers, {width} wide", *transformer(width)) for width in WIDTHS]
    return {"costs": costs, "repeats": REPEATS, "torch": torch.__version__, "load": os.getloadavg()[0]}
