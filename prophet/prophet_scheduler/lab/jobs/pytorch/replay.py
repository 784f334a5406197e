"""Replays a recorded job: its gradients, at its times, through a real model; compute is sleeping.

Rule of this file: an ordinary training script. The model has one module for each gradient of the profile, with a
parameter of that size. Its forward sleeps as long as the layer took. Its backward sleeps until the gradient's
generation time and returns a prepared gradient, so the gradients of one step of the stepwise pattern become available
together. Code that waits for parameters does so before a module's forward, as in any PyTorch model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from prophet_scheduler.core.profile import GradientProfile, Profile
from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.job_config import ReplayJob
from prophet_scheduler.lab.jobs.common import Recorder
from prophet_scheduler.lab.jobs.compute import ComputeClock
from prophet_scheduler.lab.jobs.pytorch.training import run, train
from prophet_scheduler.models.profiles import load_profile


class _Compute(torch.autograd.Function):
    """Identity on its input; the weight's gradient is the one prepared by the layer."""

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
    """Layer for one gradient of the profile; `weight` is float32 of that size, rounded down to whole elements."""

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
    """Model with the layers in forward order; `noise` generates this worker's gradients."""

    def __init__(self, profile: Profile, clock: ComputeClock, noise: torch.Generator) -> None:
        super().__init__()
        self.clock = clock
        self.layers = torch.nn.ModuleList(ReplayLayer(gradient, clock, noise) for gradient in profile.gradients)

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            self.clock.call_module()
            flow = layer(flow)
        return flow


def job(spec: ReplayJob, exchange: TorchJobExchange, recorder: Recorder) -> tuple[ReplayModel, None]:
    clock = ComputeClock()
    noise = torch.Generator().manual_seed(spec.seed + exchange.rank)
    model = ReplayModel(load_profile(Path(spec.profile)), clock, noise)

    def loss_of(called: Any, iteration: int) -> torch.Tensor:
        clock.begin_iteration()
        flow: torch.Tensor = called(torch.ones(1)).sum()
        clock.begin_backward()
        return flow

    train(spec, exchange, recorder, model, torch.optim.SGD(model.parameters(), lr=1e-3), loss_of, spec.clip_norm)
    return model, None


if __name__ == "__main__":
    run(__doc__, job, deterministic=False)
