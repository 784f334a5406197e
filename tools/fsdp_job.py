"""Rank that times FSDP2 with BERT-base's parameters at a quarter of their size: 25.6 MB, with computing slept.

Rule of this file: an ordinary training script. Each module sleeps in forward and in backward as long as its part of the
model would compute. Rank 0 prints the seconds of the iterations after the first few. Over real gloo on shaped links:

    prophet testbed --bandwidth 250mbit -- python tools/fsdp_job.py [--keep] [--replicas 2]
    PROPHET_SCHEDULER=prophet prophet testbed --bandwidth 250mbit -- python tools/fsdp_job.py [--keep] [--replicas 2]

With as many replicas as ranks each rank has all parameters, by FSDP2's replicate().
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

BYTES = 25_600_000
LAYERS = 12
EMBEDDING = 0.22
"""Part of the parameters that the embeddings have."""
FORWARD_S, BACKWARD_S = 0.3, 0.6
WIDTH = 64
FIRST = 5
"""Iterations that do not count."""


class _Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flow: torch.Tensor, weight: torch.Tensor, layer: SlowLayer) -> torch.Tensor:
        ctx.layer = layer
        time.sleep(layer.forward_s)
        return flow.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(ctx.layer.backward_s)
        return upstream[0], ctx.layer.gradient, None


class SlowLayer(torch.nn.Module):
    """Layer with `elements` parameters that computes a `part` of the model's time."""

    def __init__(self, elements: int, part: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements // WIDTH, WIDTH))
        self.gradient = torch.rand_like(self.weight)
        self.forward_s, self.backward_s = part * FORWARD_S, part * BACKWARD_S

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Compute.apply(flow, self.weight, self)  # type: ignore[no-untyped-call]
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep parameters after forward")
    parser.add_argument("--replicas", type=int, default=1, help="replicas of what the other ranks share")
    parser.add_argument("--iterations", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    elements = BYTES // 4
    embedding = SlowLayer(int(EMBEDDING * elements), 0.0)
    layers = [SlowLayer(int((1 - EMBEDDING) * elements / LAYERS), 1 / LAYERS) for _ in range(LAYERS)]
    model = torch.nn.Sequential(embedding, *layers)
    ranks, replicas = dist.get_world_size(), options.replicas
    if ranks % replicas:
        parser.error(f"--replicas {replicas}: {ranks} ranks do not divide into so many; give a divisor")
    both = 1 < replicas < ranks
    mesh = init_device_mesh(
        "cpu",
        (replicas, ranks // replicas) if both else (ranks,),
        mesh_dim_names=("replicas", "parts") if both else ("ranks",),
    )
    for module in (*model, model):
        if 1 < replicas == ranks:
            replicate(module, mesh=mesh)
        else:
            fully_shard(module, mesh=mesh, reshard_after_forward=not options.keep)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    took_s = []
    for _ in range(options.iterations):
        began_s = time.monotonic()
        model(torch.ones(1, requires_grad=True)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s.append(time.monotonic() - began_s)
    if dist.get_rank() == 0:
        counted = took_s[FIRST:]
        print(json.dumps({"mean_s": statistics.mean(counted), "iterations_s": [round(each, 3) for each in counted]}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
