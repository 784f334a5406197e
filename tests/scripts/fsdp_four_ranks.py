"""Four ranks: parameters resharded to pairs after forward, and two replicas of what two ranks share."""

import averaging  # noqa: F401
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from ways import run_fsdp, train, way


def pairwise():
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)), nn.Linear(32, 10))
    for layer in model[:4]:
        fully_shard(layer, reshard_after_forward=2)
    return fully_shard(model)


@way(pairwise)
def pairs(model, optimizer):
    """They are gathered within a pair in backward."""
    return [train(model, optimizer) for _ in range(6)]


def of_two_dimensions():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))
    model = nn.Sequential(nn.Embedding(30, 24), *(nn.Linear(24, 24) for _ in range(5)), nn.Linear(24, 30))
    for layer in model[1:6]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model[3].set_allocate_memory_from_process_group_for_comm(True)
    return model


@way(of_two_dimensions, torch.optim.AdamW)
def hybrid(model, optimizer):
    """Accumulation in both ways, and an all-reduce only now and then, of all layers or of all but one. One layer has
    memory and collectives of torch's.
    """
    losses = []

    def backward():
        tokens = torch.randint(30, (16,))
        loss = nn.functional.cross_entropy(model(tokens), tokens.roll(1))
        loss.backward()
        losses.append(loss.item())

    for iteration in range(8):
        if iteration % 4 == 1:
            model.set_requires_gradient_sync(False)
            backward()
            model.set_requires_gradient_sync(True)
        elif iteration % 4 == 2:
            model.set_requires_all_reduce(False)
            backward()
            model.set_requires_all_reduce(True)
        elif iteration % 4 == 3:
            model[4].set_requires_all_reduce(False, recurse=False)
            backward()
            model[4].set_requires_all_reduce(True, recurse=False)
        backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses


run_fsdp()
