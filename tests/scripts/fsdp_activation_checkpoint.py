"""Activation checkpoints around blocks, as a wrapper of torch's makes them."""

from functools import partial

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
wrap = partial(checkpoint_wrapper, checkpoint_impl=CheckpointImpl.NO_REENTRANT)
blocks = [nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True) for _ in range(4)]
model = nn.Sequential(nn.Embedding(50, 32), *(fully_shard(wrap(block)) for block in blocks), nn.Linear(32, 50))
fully_shard(model, reshard_after_forward=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(5):
    tokens = torch.randint(50, (4, 12))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report([param.full_tensor() for param in model.parameters()], losses=losses)
dist.destroy_process_group()
