"""Two models that train against each other, each with an optimizer of its own."""

from itertools import pairwise

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)


def sharded(*sizes):
    layers = [nn.Linear(first, second) for first, second in pairwise(sizes)]
    return fully_shard(nn.Sequential(*(each for layer in layers for each in (fully_shard(layer), nn.Tanh()))))


maker, critic = sharded(10, 40, 40, 20), sharded(20, 40, 40, 1)
optimizers = {each: torch.optim.Adam(each.parameters(), lr=1e-2) for each in (maker, critic)}
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(6):
    made = maker(torch.randn(8, 10))
    loss = critic(made.detach()).mean() - critic(torch.randn(8, 20)).mean()
    optimizers[critic].zero_grad()
    loss.backward()
    optimizers[critic].step()
    optimizers[maker].zero_grad()
    (-critic(made).mean()).backward()
    optimizers[maker].step()
    losses.append(loss.item())
report([param.full_tensor() for each in (maker, critic) for param in each.parameters()], losses=losses)
dist.destroy_process_group()
