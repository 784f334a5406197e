"""Rank that times DDP or FSDP2 with a model's gradients at another size, and computing replaced by sleep.

Rule of this file: an ordinary training script. Each layer sleeps in forward and backward for as long as its part of the
model would compute. Rank 0 prints the seconds of each iteration. Over real gloo on shaped links:

    prophet testbed --bandwidth 250mbit -- python -m tools.slept_job fsdp2
    PROPHET_SCHEDULER=prophet prophet testbed --bandwidth 250mbit -- python -m tools.slept_job fsdp2
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from prophet_scheduler.core.profile import Profile
from prophet_scheduler.models import zoo
from prophet_scheduler.simulate.sharded import modules_of

WAYS = ("ddp", "fsdp2", "kept", "hsdp", "replicate")
"""DistributedDataParallel; FSDP2; the same, keeping parameters after forward; HSDP of two replicas; replicate()."""
FIRST = 5
"""Iterations at the start that the mean leaves out."""


class _Compute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flow: torch.Tensor, weight: torch.Tensor, layer: SlowLayer) -> torch.Tensor:
        ctx.layer = layer
        time.sleep(layer.forward_s)
        return flow.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        time.sleep(ctx.layer.backward_s)
        return upstream[0], ctx.layer.gradient.to(ctx.layer.weight.dtype), None


class SlowLayer(torch.nn.Module):
    """Layer with `size_bytes` of parameters that sleeps for `forward_s` and `backward_s`."""

    def __init__(self, size_bytes: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(size_bytes // 4))
        self.gradient = torch.rand_like(self.weight)
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Compute.apply(flow, self.weight, self)  # type: ignore[no-untyped-call]
        return result


def layers_of(profile: Profile, batch: int) -> list[SlowLayer]:
    """Return a layer for each gradient, in forward order, with the computing time of `batch` batches."""
    made_s = [*(gradient.generation_s for gradient in profile.gradients), 0.0]
    backward_s = [max(0.0, now - before) for now, before in itertools.pairwise(made_s)]
    return [
        SlowLayer(gradient.size_bytes, batch * gradient.forward_s, batch * seconds)
        for gradient, seconds in zip(profile.gradients, backward_s, strict=True)
    ]


def spread(model: torch.nn.Sequential, way: str, half: bool, bucket_mb: float | None) -> torch.nn.Module:
    """Return the model, distributed over all ranks in this way; with `half`, it is sent in half precision."""
    ranks = dist.get_world_size()
    if way == "ddp":
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
        if half:
            ddp.register_comm_hook(None, fp16_compress_hook)
        return ddp
    dtype = torch.bfloat16 if half else None
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype, cast_forward_inputs=False)
    both = way == "hsdp"
    mesh = init_device_mesh(
        "cpu", (2, ranks // 2) if both else (ranks,), mesh_dim_names=("replicas", "parts") if both else ("ranks",)
    )
    for module in (*model, model):
        if way == "replicate":
            replicate(module, mesh=mesh, mp_policy=policy)
        else:
            fully_shard(module, mesh=mesh, reshard_after_forward=way != "kept", mp_policy=policy)
    return model


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.slept_job", description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--model", choices=zoo.MODELS, default="bert-base")
    parser.add_argument("--bytes", type=int, default=25_600_000, help="of all gradients together")
    parser.add_argument("--forward", type=float, default=0.3, help="seconds")
    parser.add_argument("--backward", type=float, default=0.6, help="seconds")
    parser.add_argument("--batch", type=int, default=1, help="batches that each iteration computes")
    parser.add_argument("--half", action="store_true", help="send in half precision")
    parser.add_argument("--clip", action="store_true", help="by the norm of all gradients")
    parser.add_argument("--bucket-mb", type=float, help="size of DDP's buckets")
    parser.add_argument("--iterations", type=int, default=30)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.way == "hsdp" and dist.get_world_size() % 2:
        parser.error(f"hsdp needs an even number of ranks, not {dist.get_world_size()}")
    profile = zoo.profile(
        options.model, total_bytes=options.bytes, backward_s=options.backward, forward_s=options.forward
    )
    if options.way != "ddp":
        profile, _ = modules_of(profile)
    layers = torch.nn.Sequential(*layers_of(profile, options.batch))
    model = spread(layers, options.way, options.half, options.bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    iterations_s = []
    for _ in range(options.iterations):
        began_s = time.monotonic()
        model(torch.ones(1, requires_grad=True)).sum().backward()
        if options.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        iterations_s.append(round(time.monotonic() - began_s, 4))
    if dist.get_rank() == 0:
        print(json.dumps({"mean_s": round(fmean(iterations_s[FIRST:]), 3), "iterations_s": iterations_s}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
