"""Blocks sharded one by one, and what is left at the root: an embedding, whose inputs have no gradient, and a head."""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(1)
blocks = [nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True) for _ in range(4)]
model = nn.Sequential(nn.Embedding(50, 32), *blocks, nn.Linear(32, 50))
for block in blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

torch.manual_seed(100 + dist.get_rank())
losses = []
for _ in range(8):
    tokens = torch.randint(50, (4, 12))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    losses.append(loss.item())
    optimizer.step()
report({name: param.full_tensor() for name, param in model.named_parameters()}, losses=losses)
dist.destroy_process_group()
