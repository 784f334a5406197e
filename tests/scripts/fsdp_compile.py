"""Compiled blocks, and activation checkpoints that run a backward pass within another."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo")
torch.manual_seed(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
        self.others = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
        self.head = nn.Linear(32, 7)

    def forward(self, values):
        for block in self.blocks:
            values = block(values)
        for other in self.others:
            values = checkpoint(other, values, use_reentrant=True)
        return self.head(values)


model = Model()
for block in (*model.blocks, *model.others):
    fully_shard(block)
for block in model.blocks:
    block.compile(backend="aot_eager")
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 32)), torch.randint(7, (8,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
