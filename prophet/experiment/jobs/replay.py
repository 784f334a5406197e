"""Replays a recorded job: its gradients, at its times, through a real model; compute is sleeping.

Rule of this file: an ordinary BytePS program. The model has one module for each gradient of the
profile, with a parameter of that size. Its forward sleeps as long as the layer took; its backward
sleeps until the gradient's generation time and hands over a gradient prepared before, so gradients of
one step of the stepwise pattern become available together. Whatever waits for parameters does so in
front of a module, as in any PyTorch model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from prophet.experiment.jobs.common import Recorder, arguments
from prophet.model import GradientProfile, Profile


class ComputeClock:
    """The accelerator that is not there: work given to it ends when its sleeping is over.

    It is late for nothing but parameters. What the host spends on calling modules and on oversleeping
    is taken off the next sleep, since a host runs ahead of its accelerator; time in front of a module
    until its parameters are there is not.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._now = now
        self._sleep = sleep
        self._due = 0.0
        self._called = 0.0
        self._backward = 0.0

    def begin_iteration(self) -> None:
        self._due = self._now()

    def call_module(self) -> None:
        """The host is about to call a module; what runs before its forward is waiting."""
        self._called = self._now()

    def forward(self, duration_s: float) -> None:
        self._due += self._now() - self._called + duration_s
        self._sleep_until_due()

    def begin_backward(self) -> None:
        self._backward = self._due

    def backward_until(self, generation_s: float) -> None:
        self._due = self._backward + generation_s
        self._sleep_until_due()

    def _sleep_until_due(self) -> None:
        remaining = self._due - self._now()
        if remaining > 0:
            self._sleep(remaining)


class _Compute(torch.autograd.Function):
    """Identity on what flows through; the gradient of the weight is the layer's prepared one."""

    @staticmethod
    def forward(ctx: Any, flow: torch.Tensor, weight: torch.Tensor, layer: ReplayLayer) -> torch.Tensor:
        ctx.layer = layer
        layer.clock.forward(layer.forward_s)
        return flow.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        layer = ctx.layer
        layer.clock.backward_until(layer.generation_s)
        return upstream[0], layer.gradient, None


class ReplayLayer(torch.nn.Module):
    """One gradient of the profile: `weight` is float32 of its size, rounded down to whole elements."""

    def __init__(self, profile: GradientProfile, clock: ComputeClock, noise: torch.Generator) -> None:
        super().__init__()
        elements = max(1, profile.size_bytes // 4)
        self.weight = torch.nn.Parameter(torch.zeros(elements))
        self.gradient = torch.rand(elements, generator=noise)
        self.forward_s = profile.forward_s
        self.generation_s = profile.generation_s
        self.clock = clock

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Compute.apply(flow, self.weight, self)  # type: ignore[no-untyped-call]
        return result


class ReplayModel(torch.nn.Module):
    """The layers in forward order; `noise` makes this worker's gradients."""

    def __init__(self, profile: Profile, clock: ComputeClock, noise: torch.Generator) -> None:
        super().__init__()
        self.clock = clock
        self.layers = torch.nn.ModuleList(ReplayLayer(gradient, clock, noise) for gradient in profile.gradients)

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            self.clock.call_module()
            flow = layer(flow)
        return flow


def main() -> None:
    spec, out = arguments(__doc__)
    import byteps.torch as bps

    from prophet.profiles import load_profile

    torch.set_num_threads(1)
    recorder = Recorder(out)
    bps.init()
    clock = ComputeClock()
    noise = torch.Generator().manual_seed(spec["seed"] + bps.rank())
    model = ReplayModel(load_profile(Path(spec["profile"])), clock, noise)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
    )
    for _ in range(spec["iterations"]):
        recorder.iteration_starts()
        clock.begin_iteration()
        optimizer.zero_grad()
        flow = model(torch.ones(1))
        recorder.backward_starts()
        clock.begin_backward()
        flow.sum().backward()
        recorder.backward_ends()
        optimizer.step()
        recorder.iteration_ends()
    recorder.write(model, {"rank": bps.rank()})


if __name__ == "__main__":
    main()
