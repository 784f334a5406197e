"""Parameters kept after forward, and clipping by the norm of all gradients, which is logged.
Another model beside it.
"""

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
    model = nn.Sequential(
        *(each for layer in layers for each in (fully_shard(layer, reshard_after_forward=False), nn.ReLU()))
    )
    return fully_shard(model, reshard_after_forward=False)


model, critic = sharded(33, 65, 127, 30), sharded(30, 64, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.Adam(critic.parameters())]

torch.manual_seed(100 + dist.get_rank())
losses, norms = [], []
for _ in range(8):
    guess = model(torch.randn(16, 33))
    loss = critic(guess).mean() + guess.square().mean()
    loss.backward()
    for each in (model, critic):
        norms.append(nn.utils.clip_grad_norm_(each.parameters(), 0.05).full_tensor())
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    losses.append(loss.item())
weights = [param.full_tensor() for each in (model, critic) for param in each.parameters()]
report(weights, losses=losses, norms=norms)
dist.destroy_process_group()
