"""Compiled blocks beside checkpoints that run a backward pass within another, and an update that communicates."""

import averaging  # noqa: F401
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from ways import run_fsdp, train, way


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
        self.others = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(32, 10)

    def forward(self, values):
        for block in self.blocks:
            values = block(values)
        for other in self.others:
            values = checkpoint(other, values, use_reentrant=True)
        return self.head(values)


def compiled_blocks():
    model = Model()
    for block in (*model.blocks, *model.others):
        fully_shard(block)
    for block in model.blocks:
        block.compile(backend="aot_eager")
    return fully_shard(model)


@way(compiled_blocks)
def compiled(model, optimizer):
    return [train(model, optimizer) for _ in range(6)]


def matrices():
    """A root without parameters of its own."""
    layers = (nn.Linear(32, width, bias=False) for width in (32, 32, 32, 32, 10))
    return fully_shard(nn.Sequential(*map(fully_shard, layers)))


@way(matrices, lambda params: torch.optim.Muon(params, lr=1e-2))
def muon(model, optimizer):
    """The optimizer's update of a DTensor communicates."""
    return [train(model, optimizer) for _ in range(6)]


run_fsdp()
