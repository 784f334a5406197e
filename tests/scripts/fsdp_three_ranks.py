"""Three ranks: parameters that do not divide evenly, and three replicas of what one rank has."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from ways import backward, run_fsdp, train, way


def uneven_rows():
    layers = *(fully_shard(nn.Linear(32, 32)) for _ in range(3)), nn.Linear(32, 2), nn.Linear(2, 10)
    fully_shard(layers[3], mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return fully_shard(nn.Sequential(*layers))


@way(uneven_rows, torch.optim.AdamW)
def uneven(model, optimizer):
    """One parameter has fewer rows than there are ranks, and a mesh of its own."""
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        losses.append(backward(model))
        clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return losses


def replicas():
    return init_device_mesh("cpu", (dist.get_world_size(), 1), mesh_dim_names=("replicas", "shards"))


def in_half_precision():
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = replicas()
    layers = [fully_shard(nn.Linear(25, 25), mesh=mesh, mp_policy=policy) for _ in range(6)]
    return fully_shard(nn.Sequential(*layers), mesh=mesh, mp_policy=policy)


@way(in_half_precision)
def replicated(model, optimizer):
    """With clipping. One rank alone looks at gradients within backward."""
    norms, seen = [], []

    def look(module, inner, outer):
        if dist.get_rank() == 1:
            seen.append(model[3].weight.grad.to_local().clone())

    hook = model[1].register_full_backward_hook(look)
    for iteration in range(8):
        if iteration == 4:
            hook.remove()
        model(torch.randn(8, 25)).float().square().mean().backward()
        if iteration % 2:
            norms.append(clip_grad_norm_(model.parameters(), 0.1).full_tensor())
        optimizer.step()
        optimizer.zero_grad()
    return norms, seen


def without_a_root():
    mesh = replicas()
    return nn.Sequential(*(fully_shard(nn.Linear(32, 32), mesh=mesh) for _ in range(12)))


@way(without_a_root)
def many_roots(model, optimizer):
    """Each layer is a model of its own."""
    return [train(model, optimizer) for _ in range(6)]


run_fsdp()
