"""A training script that calls BytePS's push_pull itself; `python -m tools.own_pushes` measures it.

    own_pushes_job.py PROFILE ITERATIONS WAYS

Rule of this file: an ordinary PyTorch program of BytePS, which knows nothing of Prophet but the replay's model, whose
computing is sleeping. WAYS is `priorities` (each layer's forward waits for its own average, as in BytePS's
cross_barrier.py, and the first layer in forward is the most urgent) or `waiting` (no priorities, and all averages are
waited for after backward). Its output is `connected`, `iteration N SECONDS` and `weights` with their digest.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import byteps.torch as bps
import torch
from byteps.torch.ops import push_pull_async_inplace, synchronize

from prophet_scheduler.lab.jobs.compute import ComputeClock
from prophet_scheduler.lab.jobs.pytorch.replay import ReplayLayer, ReplayModel
from prophet_scheduler.models.profiles import load_profile


class Pushes:
    """Transfers under way of each layer, and how they are sent."""

    def __init__(self, model: ReplayModel, urgent: bool) -> None:
        self._urgent = urgent
        self._handles: dict[int, int] = {}
        self._layers: list[Any] = list(model.layers)
        self._sent = [torch.empty_like(layer.weight) for layer in self._layers]
        for number, layer in enumerate(self._layers):
            layer.weight.register_post_accumulate_grad_hook(lambda _, number=number: self._send(number))
            if urgent:
                layer.register_forward_pre_hook(lambda *_, number=number: self.finish(number))

    def _send(self, number: int) -> None:
        layer = self._layers[number]
        self._sent[number].copy_(layer.weight.grad)
        layer.weight.grad = None
        how = {"priority": -number} if self._urgent else {}
        self._handles[number] = push_pull_async_inplace(self._sent[number], name=f"gradient.{number}", **how)

    def finish(self, number: int) -> None:
        """Wait for this layer's average and apply it, if there is one."""
        handle = self._handles.pop(number, None)
        if handle is not None:
            synchronize(handle)
            layer = self._layers[number]
            with torch.no_grad():
                layer.weight.add_(self._sent[number], alpha=-1e-3)

    def finish_all(self) -> None:
        """Do the same for all layers."""
        for number in range(len(self._layers)):
            self.finish(number)


def main() -> None:
    profile, iterations, ways = sys.argv[1:]
    torch.set_num_threads(1)
    bps.init()
    bps.push_pull(torch.ones(1), name="connected")
    print("connected", flush=True)
    clock, noise = ComputeClock(), torch.Generator().manual_seed(bps.rank())
    model = ReplayModel(load_profile(Path(profile)), clock, noise)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    pushes = Pushes(model, urgent=ways == "priorities")
    for iteration in range(int(iterations)):
        began = time.monotonic()
        clock.begin_iteration()
        flow = model(torch.ones(1, requires_grad=True))
        clock.begin_backward()
        flow.sum().backward()
        if ways == "waiting":
            pushes.finish_all()
        print("iteration", iteration + 1, f"{time.monotonic() - began:.6f}", flush=True)
    pushes.finish_all()
    digest = hashlib.sha256()
    for layer in model.layers:
        assert isinstance(layer, ReplayLayer)
        digest.update(layer.weight.detach().numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
